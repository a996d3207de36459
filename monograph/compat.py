"""Every torch API we use that is private, or differs between the versions we serve. Checked on 2.11 and 2.13."""

import ctypes
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.fsdp._fully_shard._fsdp_common as fsdp_common
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch._subclasses import FakeTensorMode
from torch.autograd import DeviceType
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.traceback import annotate as annotate_fx_nodes
from torch.fx.traceback import preserve_node_meta
from torch.testing._internal.distributed.fake_pg import FakeStore


def grouped_mm(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """rows [n, in] by weights [groups, in, out]: group g multiplies the rows from ends[g - 1] to ends[g] (int32).

    Public as torch.nn.functional.grouped_mm since 2.10; here because what it accepts still changes.
    """
    return F.grouped_mm(rows, weights, offs=ends)


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """`value.to(dtype)` for use inside an autograd.Function, where a cast that changes nothing must leave no trace.

    On torch 2.11, a Function whose forward ends in such a cast gets zero gradients under dynamo, without a word.
    """
    return value if value.dtype == dtype else value.to(dtype)


def has_grouped_mm(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether grouped_mm serves this device and dtype without reading the offsets on the host.

    CUDA: a real kernel from compute capability 9.0 on; below it torch copies the offsets to the host. Without a GPU in
    this process, CUDA tensors are fake ones and stand for a machine that has one. CPU: a loop inside torch.
    """
    if dtype != torch.bfloat16:
        return False
    if device.type == "cuda":
        return not torch.cuda.is_available() or torch.cuda.get_device_capability(device) >= (9, 0)
    return device.type == "cpu"


# --- Ops that graphs contain and whose names are private. ---

ATEN = torch.ops.aten
GATHER = torch.ops._c10d_functional.all_gather_into_tensor.default
SCATTER = torch.ops._c10d_functional.reduce_scatter_tensor.default
REDUCE = torch.ops._c10d_functional.all_reduce.default
EXCHANGE = torch.ops._c10d_functional.all_to_all_single.default
WAIT = torch.ops._c10d_functional.wait_tensor.default
READ_SIZE = ATEN._local_scalar_dense.default
"""Brings a number from data to the host, where it becomes a size."""
UNSAFE_VIEW = ATEN._unsafe_view.default


def find_costly_ops() -> frozenset[Any]:
    """Ops worth remembering: products, attention and top-k."""
    names = ("mm", "bmm", "addmm", "baddbmm", "linear", "_grouped_mm", "topk")
    attention = (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_fused_attention_overrideable",
    )
    return frozenset(getattr(ATEN, name).default for name in (*names, *attention))


# --- Functional collectives by group name: the only ops whose results a graph can hold. ---


def all_gather(value: Tensor, size: int, group: str) -> Tensor:
    """Every rank's tensor, concatenated along dim 0.

    Several ranks that share a GPU talk over gloo, whose gather of CUDA tensors crashes torch 2.11; there, everyone
    sends a copy to everyone instead.
    """
    ops = torch.ops._c10d_functional
    if value.is_cuda and is_gloo(group):
        copies = value.unsqueeze(0).expand(size, *value.shape).flatten(0, 1).contiguous()
        return all_to_all(copies, [value.shape[0]] * size, [value.shape[0]] * size, group)
    return ops.wait_tensor(ops.all_gather_into_tensor(value, size, group))


def reduce_scatter(value: Tensor, size: int, group: str) -> Tensor:
    """The sum over ranks, of which each rank gets its piece along dim 0."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.reduce_scatter_tensor(value, "sum", size, group))


def all_reduce(value: Tensor, operation: str, group: str) -> Tensor:
    """The sum or max over ranks, out of place."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_reduce(value, operation, group))


def all_to_all(rows: Tensor, received: list[int], sent: list[int], group: str) -> Tensor:
    """Row exchange: sent[i] rows go to rank i, received[i] come from it."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_to_all_single(rows, received, sent, group))


def is_gloo(group: str) -> bool:
    """Whether a group's collectives are gloo's."""
    native = torch._C._distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
    return dist.get_backend(native) == "gloo"


def find_collective_ops() -> set[Any]:
    """The ops that the functions above are made of: each start of a transfer, and the end of all of them."""
    ops = torch.ops._c10d_functional
    starts = (ops.all_gather_into_tensor, ops.reduce_scatter_tensor, ops.all_reduce, ops.all_to_all_single)
    return {op.default for op in (*starts, ops.wait_tensor)}


def alias_process_group(name: str, group: dist.ProcessGroup) -> None:
    """Let collectives find `group` under a second name; the group's own name stays what it was."""
    torch._C._distributed_c10d._register_process_group(name, group)  # type: ignore[arg-type]


def remove_group_alias(name: str) -> None:
    """Forget a name given by `alias_process_group`."""
    torch._C._distributed_c10d._unregister_process_group(name)  # type: ignore[arg-type]


_CYCLES_PER_SECOND = 1.5e9
"""About what the clock that `sleep_on_device` counts makes; only emulated transfers depend on it."""


def sleep_on_device(seconds: float) -> None:
    """Keep the current CUDA stream busy without using the device."""
    torch.cuda._sleep(int(seconds * _CYCLES_PER_SECOND))


def fake_store() -> dist.Store:
    """A store for the `fake` backend, which pretends to be one rank of any world."""
    return FakeStore()


def annotate_nodes(values: dict[str, str]) -> AbstractContextManager[None]:
    """Put `values` into the custom metadata of every node traced inside (torch.fx.traceback, since 2.9)."""
    return annotate_fx_nodes(values)


# --- FSDP2 with parameters of one module on two meshes: torch 2.12 and later (absent in 2.11). ---


def has_parameter_meshes() -> bool:
    """Whether `fully_shard` can put some of a module's parameters on another mesh."""
    return hasattr(fsdp_common, "ShardPlacementResult")


def placements_on(mesh: DeviceMesh) -> Callable[[int], Any]:
    """dim -> what a `shard_placement_fn` returns to shard a parameter along `dim` over `mesh` (replicas by) shards."""
    if mesh.ndim == 1:
        info = fsdp_common.FSDPMeshInfo(mesh, shard_mesh_dim=0)
    else:
        info = fsdp_common.HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)
    return lambda dim: fsdp_common.ShardPlacementResult(placement=Shard(dim), mesh_info=info)


# --- torch.compile: in place, without graph breaks, with settings that end with the block that set them. ---


def is_capture_error(error: Exception) -> bool:
    """Whether dynamo says that a frame cannot become one graph.

    dynamo is reached through torch's attribute, which imports it on first use: eager runs never pay for it.
    """
    errors = torch._dynamo.exc
    return isinstance(error, errors.Unsupported | errors.UserError | errors.TorchRuntimeError)


def is_recompile_limit(error: Exception) -> bool:
    """Whether dynamo refuses to compile a frame once more."""
    return isinstance(error, torch._dynamo.exc.FailOnRecompileLimitHit)


def find_raised(error: Exception) -> str:
    """What the captured code itself raised, when that is why its capture ended."""
    cause = error.__cause__
    return str(cause) if isinstance(cause, torch._dynamo.exc.ObservedException) else ""


def find_backend(name: str) -> Any:
    """The compiler registered under a name."""
    return torch._dynamo.backends.registry.lookup_backend(name)


def compile_in_place(module: nn.Module, backend: Any) -> None:
    """Compile a module's forward as one graph with static shapes; hooks on the module itself stay outside."""
    module.compile(fullgraph=True, dynamic=False, backend=backend)


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether `compile_in_place` was here already."""
    return module._compiled_call_impl is not None


@contextmanager
def compiled_calls_in(module: nn.Module, around: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Inside, every call of a module that was compiled in place happens within `around`: hooks would be compiled."""
    compiled: Any = module._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        with around():
            return compiled(*args, **kwargs)

    module._compiled_call_impl = call
    try:
        yield
    finally:
        module._compiled_call_impl = compiled


def compile_function(function: Callable[..., Any], backend: Any, *, is_dynamic: bool = False) -> Callable[..., Any]:
    """A function as one compiled graph, for the sizes of its first call or for all."""
    return torch.compile(function, fullgraph=True, dynamic=is_dynamic, backend=backend)


def scoped_dynamo(**settings: Any) -> AbstractContextManager[None]:
    """Change dynamo's settings inside the block only."""
    return torch._dynamo.config.patch(**settings)


# --- Capture: make_fx on fake tensors, with the metadata that tells where each node comes from. ---


@contextmanager
def fake_tensors() -> Iterator[FakeTensorMode]:
    """Tensors made inside have shapes but no memory; sizes read from data become symbols."""
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        yield mode


def expression_of(size: torch.SymInt) -> Any:
    """The formula of a size that is known only at run time, as it was first written down."""
    return size.node._expr


def fake_mode_of(value: Any) -> FakeTensorMode:
    """The mode that made a fake tensor."""
    mode: FakeTensorMode = value.fake_mode
    return mode


@contextmanager
def values_recomputed(mode: Any) -> Iterator[None]:
    """Run captured ops again on their fake values; symbols that this invents belong to nobody and are forgotten."""
    with mode, mode.shape_env.ignore_fresh_unbacked_symbols():
        yield


def trace_function(
    function: Callable[..., Any], inputs: list[Tensor], _mode: FakeTensorMode, *, has_sources: bool = False
) -> fx.GraphModule:
    """Every op `function` runs on fake inputs, as a graph; nodes keep their annotations and autograd numbers.

    Backward runs on this thread: on another one it would lose the annotations.
    """
    with preserve_node_meta(), torch.autograd.set_multithreading_enabled(False):
        return make_fx(function, record_stack_traces=has_sources)(*inputs)


CompiledCode = Callable[..., Any]


def start_compiler() -> None:
    """Start Inductor's workers early: until they are there, a GPU's kernels are built one after another."""
    if torch.cuda.is_available():
        importlib.import_module("torch._inductor.async_compile").maybe_warm_pool()


def compile_graph(module: fx.GraphModule, inputs: list[Any], mode: Any) -> CompiledCode:
    """Inductor's code for a graph on values of these forms; sizes keep the symbols of the capture's mode.

    Inductor and the tracing context are reached through torch's attributes: eager runs never import them.
    """
    guards = torch._guards
    if torch.cuda.is_available():
        importlib.import_module("torch._inductor.async_compile").AsyncCompile.wait_pool_ready()
    with guards.tracing(guards.TracingContext(mode)):
        return torch._inductor.standalone_compile(module, inputs, dynamic_shapes="from_tracing_context", options={})


class KernelMissing(Exception):
    """Loaded code asks for a kernel that was not brought along."""


@contextmanager
def compiler_folder(folder: Path, *, is_complete: bool = False) -> Iterator[None]:
    """Inductor and Triton keep what they make in this folder, and find there only what is in it.

    Headers are not compiled ahead: that would change the names under which kernels are found again. With `is_complete`
    no C++ kernel is built: one that is missing is an error, not a minute of waiting.
    """
    inductor = torch._inductor
    places = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}

    def refuse(builder: Any) -> None:
        raise KernelMissing(f"there is no {Path(builder.get_target_file_path()).name}")

    builders = mock.patch.object(inductor.cpp_builder.CppBuilder, "build", refuse)
    inductor.utils.clear_caches()
    if not is_complete:
        forget_processor()
    try:
        with mock.patch.dict(os.environ, places), inductor.config.patch(cpp_cache_precompile_headers=False):
            if is_complete:
                with builders:
                    yield
            else:
                yield
    finally:
        inductor.utils.clear_caches()


def forget_processor() -> None:
    """Let Inductor find out anew what the processor can do: the little programs it asks with belong to its kernels."""
    kinds = torch._inductor.cpu_vec_isa
    for found in (getattr(kinds.VecISA, "_VecISA__bool__impl", None), kinds.valid_vec_isa_list, kinds.pick_vec_isa):
        forget = getattr(found, "cache_clear", None)
        if forget is not None:
            forget()


def save_compiled(code: Any, path: Path) -> None:
    """Write what `compile_graph` made."""
    code.save(path=str(path), format="binary")


def load_compiled(path: Path) -> CompiledCode:
    """Code that `save_compiled` wrote. The file is code, and is run: check where it comes from before."""
    return torch._inductor.CompiledArtifact.load(path=str(path), format="binary")


def find_kernels(found: Any) -> list[tuple[int, str, float]]:
    """What a profile saw on a GPU: the number of the op that launched it, its name, its microseconds.

    torch's own events list a kernel again under every call whose number happens to be that of its op.
    """
    kernels = [event for event in found.profiler.kineto_results.events() if event.device_type() == DeviceType.CUDA]
    return [(event.linked_correlation_id(), event.name(), event.duration_ns() / 1000) for event in kernels]


def find_cuda_driver() -> str:
    """The driver's class: the newest CUDA it serves, which is what decides whether kernels load. torch does not say."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return str(version.value)


def mark_backward(loss: Tensor) -> None:
    """Before gradients of `loss` are taken in a capture: let backward nodes know which forward node they undo."""
    if loss.grad_fn is not None:
        setup_stacktrace_preservation_hooks([loss.grad_fn])


def is_gradient_sum(node: fx.Node, last_number: int) -> bool:
    """Whether a backward node adds up gradients of a value that was used twice: it undoes no forward node.

    It carries the loss's autograd number for want of one of its own. 2.13 flags exactly these nodes, 2.11 flags all.
    """
    is_add = node.target is torch.ops.aten.add.Tensor
    return is_add and bool(node.meta.get("is_gradient_acc")) and node.meta.get("seq_nr", -1) >= last_number


def find_pure_form(op: Any) -> Any:
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
