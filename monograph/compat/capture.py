"""Capture: make_fx on fake tensors, with the metadata that tells where each node comes from."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

TRACER_MODULES = ("torch._dynamo",)
"""What the first capture of a process imports: a process that forks others imports it for all of them."""


@contextmanager
def fake_tensors() -> Iterator[FakeTensorMode]:
    """Tensors made inside have shapes but no memory; unbacked sizes become symbols.

    Symbols are sympy's, which takes a second to import, as does the compiler that the mode brings in: a run whose step
    was captured before needs neither.
    """
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    with FakeTensorMode(shape_env=shapes.ShapeEnv()) as mode:
        yield mode


def expression_of(size: torch.SymInt) -> Any:
    """The formula of a size that is known only at run time, as it was first written down."""
    return size.node._expr


def copy_fake(value: Tensor) -> Tensor:
    """A fake tensor of the same form in memory of its own.

    Made directly: to call an op that makes it, in its mode, takes seven times as long. Passes copy thousands.
    """
    fake: Any = value
    if any(not isinstance(size, int) for size in value.shape):
        with fake.fake_mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    inner = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return FakeTensor(fake.fake_mode, inner, value.device)


def fake_mode_of(value: Any) -> FakeTensorMode:
    """The mode that made a fake tensor."""
    mode: FakeTensorMode = value.fake_mode
    return mode


@contextmanager
def values_recomputed(mode: Any) -> Iterator[None]:
    """Run captured ops again on their fake values; new unbacked symbols that this creates are discarded."""
    with mode, mode.shape_env.ignore_fresh_unbacked_symbols():
        yield


def trace_function(
    function: Callable[..., Any], inputs: list[Tensor], _mode: FakeTensorMode, *, has_sources: bool = False
) -> fx.GraphModule:
    """Every op `function` runs on fake inputs, as a graph; nodes keep their annotations and autograd numbers.

    Backward runs on this thread: on another one it would lose the annotations.
    """
    with preserve_node_meta(), torch.autograd.set_multithreading_enabled(False):
        module = make_fx(function, record_stack_traces=has_sources)(*inputs)
    return make_lazy_module(module, module.graph)


def mark_backward(loss: Tensor) -> None:
    """Before gradients of `loss` are taken in a capture: let backward nodes know which forward node they undo."""
    if loss.grad_fn is not None:
        hooks = importlib.import_module("torch._functorch._aot_autograd.logging_utils")  # brings sympy
        hooks.setup_stacktrace_preservation_hooks([loss.grad_fn])


def is_gradient_sum(node: fx.Node, last_number: int) -> bool:
    """Whether a backward node adds up gradients of a value that was used twice: it undoes no forward node.

    It carries the loss's autograd number for want of one of its own. 2.13 flags exactly these nodes, 2.11 flags all.
    """
    is_add = node.target is torch.ops.aten.add.Tensor
    return is_add and bool(node.meta.get("is_gradient_acc")) and node.meta.get("seq_nr", -1) >= last_number


def find_functional_variant(op: Any) -> Any:
    """The op that computes what an in-place op writes: add_.Scalar -> add.Scalar."""
    namespace, _, name = op._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"))
    return getattr(packet, op._overloadname)


def is_op(target: Any) -> bool:
    """Whether a node calls an operator of torch's, rather than a Python function."""
    return isinstance(target, torch._ops.OpOverload)


def make_lazy_module(root: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """A module whose code is written when it is first called: a graph that is only copied or printed needs none."""
    return _LazyGraphModule(root, graph)
