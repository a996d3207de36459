"""The operators that a graph file may call, by name. A file that names anything else is refused.

The list is generated: it is what captures and passes produce for every family, mesh and pipeline on a CPU
(`python -m tests.graph.captured_ops --write`), and a test compares the two. What a GPU adds stands beside it, with the
reason. Nothing in it writes into an argument, opens a file, draws random numbers or loads a library.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from monograph.compat.capture import is_op
from monograph.compat.ops import find_op
from monograph.errors import ConfigError
from monograph.graph.encode import GraphFileError
from monograph.graph.host_copy import FROM_HOST, TO_HOST, WAIT_COPY
from monograph.graph.layer_ops import LAYER_OP_TEXTS, LAYER_OPS
from monograph.kernels.catalog import find_kernel_ops, is_declared
from monograph.renamed import RENAMED_OPS, find_new_name

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "getitem": operator.getitem,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
}
"""Parts of lists, and arithmetic on sizes."""
_FUNCTION_NAMES = {function: name for name, function in FUNCTIONS.items()}

GENERATED: frozenset[str] = frozenset(
    {
        # generated
        "add",
        "floordiv",
        "getitem",
        "sub",
        "_c10d_functional.all_gather_into_tensor.default",
        "_c10d_functional.all_reduce.default",
        "_c10d_functional.all_to_all_single.default",
        "_c10d_functional.reduce_scatter_tensor.default",
        "_c10d_functional.wait_tensor.default",
        "aten._grouped_mm.default",
        "aten._local_scalar_dense.default",
        "aten._log_softmax.default",
        "aten._softmax.default",
        "aten._softmax_backward_data.default",
        "aten._to_copy.default",
        "aten._unsafe_view.default",
        "aten.add.Scalar",
        "aten.add.Tensor",
        "aten.addcmul.default",
        "aten.alias.default",
        "aten.amax.default",
        "aten.any.dim",
        "aten.arange.default",
        "aten.bitwise_and.Tensor",
        "aten.cat.default",
        "aten.clone.default",
        "aten.constant_pad_nd.default",
        "aten.detach.default",
        "aten.div.Scalar",
        "aten.div.Tensor",
        "aten.embedding.default",
        "aten.embedding_dense_backward.default",
        "aten.empty_like.default",
        "aten.eq.Tensor",
        "aten.exp.default",
        "aten.expand.default",
        "aten.expm1.default",
        "aten.floor_divide.default",
        "aten.gather.default",
        "aten.ge.Scalar",
        "aten.index.Tensor",
        "aten.index_select.default",
        "aten.log.default",
        "aten.logsumexp.default",
        "aten.lt.Scalar",
        "aten.masked_fill.Scalar",
        "aten.mean.dim",
        "aten.mm.default",
        "aten.mul.Scalar",
        "aten.mul.Tensor",
        "aten.ne.Scalar",
        "aten.neg.default",
        "aten.new_zeros.default",
        "aten.ones_like.default",
        "aten.permute.default",
        "aten.pow.Tensor_Scalar",
        "aten.reciprocal.default",
        "aten.remainder.Scalar",
        "aten.repeat.default",
        "aten.repeat_interleave.Tensor",
        "aten.rsqrt.default",
        "aten.scalar_tensor.default",
        "aten.scatter.src",
        "aten.scatter.value",
        "aten.scatter_add.default",
        "aten.searchsorted.Tensor",
        "aten.select.int",
        "aten.sigmoid.default",
        "aten.sigmoid_backward.default",
        "aten.silu.default",
        "aten.silu_backward.default",
        "aten.slice.Tensor",
        "aten.sort.stable",
        "aten.split.Tensor",
        "aten.split_with_sizes.default",
        "aten.squeeze.dim",
        "aten.stack.default",
        "aten.sub.Tensor",
        "aten.sum.default",
        "aten.sum.dim_IntList",
        "aten.sym_numel.default",
        "aten.sym_size.int",
        "aten.t.default",
        "aten.topk.default",
        "aten.transpose.int",
        "aten.unbind.int",
        "aten.unsqueeze.default",
        "aten.view.default",
        "aten.where.self",
        "aten.zeros.default",
        "monograph.add_norm.default",
        "monograph.add_wide.default",
        "monograph.attention.default",
        "monograph.attention_backward.default",
        "monograph.chunked_cross_entropy.default",
        "monograph.combine_rows.default",
        "monograph.combine_rows_backward.default",
        "monograph.dropout.default",
        "monograph.from_host.default",
        "monograph.grouped_matmul.default",
        "monograph.grouped_matmul_weight_grad.default",
        "monograph.join_heads.default",
        "monograph.matmul_swiglu.default",
        "monograph.matmul_swiglu_backward.default",
        "monograph.norm.default",
        "monograph.norm_backward.default",
        "monograph.norm_backward_recompute.default",
        "monograph.rope.default",
        "monograph.rope_packed.default",
        "monograph.split_heads.default",
        "monograph.sum_rows.default",
        "monograph.swiglu.default",
        "monograph.swiglu_backward.default",
        "monograph.swiglu_backward_recompute.default",
        "monograph.to_host.default",
        "monograph.wait_copy.default",
        # end of generated
    }
)
"""What captures and passes produce on a CPU."""

_OWN_ATTENTION = "F.scaled_dot_product_attention in a model from outside: the families have an op of ours"
EXTRA: Mapping[str, str] = {
    **{f"aten.{name}": "layers that models of other families are made of" for name in LAYER_OPS},
    **{
        f"aten._scaled_dot_product_{kind}{direction}.default": _OWN_ATTENTION
        for kind in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
        for direction in ("", "_backward")
    },
    **{str(each.op): "a custom op of kernels/catalog.py" for each in find_kernel_ops()},
    "aten.view.dtype": "weights that are gathered in float8, as bytes",
    **{str(op): "copies of offloaded activations" for op in (TO_HOST, FROM_HOST, WAIT_COPY)},
}
"""Operator -> why it is allowed although no capture on a CPU may have it."""

REDUCTIONS = ("sum", "max")
"""What a collective may combine values with."""
_added: dict[str, Mapping[str, Sequence[str]]] = {}
"""Operator -> the texts its arguments may be; those that users have added."""


def allow_op(name: str, *, reason: str, strings: Mapping[str, Sequence[str]] | None = None) -> None:
    """Let graph files call one more operator: for a model with operators that the families here do not use.

    What is declared with `custom_op` is allowed already; only its text arguments need this.
    Call it in the module of the model or recipe, which both `precompile` and `train` import. `strings` lists the values
    of the operator's text arguments. An operator that writes into an argument or draws random numbers is refused.
    """
    op = find_op(name)
    if op is None or not reason:
        why = "torch.ops has no such operator" if op is None else "no reason is given"
        raise ConfigError(f"allow_op({name!r:.80})", why=why, do="name it as `aten.gelu.default`, and say what for")
    if op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags:
        raise ConfigError(
            f"allow_op({name!r}): it writes into an argument or draws random numbers",
            why="values in a graph never change and are the same on every run",
            do="use one that returns a new value; mg.random_uniform draws random numbers by seed and position",
        )
    _added[name] = dict(strings or {})


def name_of(target: Any) -> str:
    """What a node calls, as graph files name it; whether a file may is another question."""
    return str(target) if is_op(target) else _FUNCTION_NAMES.get(target, repr(target))


def is_allowed(name: str) -> bool:
    """Whether a graph file may call this."""
    return name in GENERATED or name in EXTRA or name in _added or is_declared(name)


def find_target(name: Any) -> Any:
    """The operator or function of that name, if a graph file may call it."""
    if isinstance(name, str) and is_allowed(name):
        found = FUNCTIONS.get(name) or find_op(name)
        if found is not None:
            return found
    new = find_new_name(name, [*GENERATED, *EXTRA], RENAMED_OPS) if isinstance(name, str) else ""
    now = f"; it is called {new} now, and the step has to be captured again" if new else ""
    raise GraphFileError(f"a node calls {name!r:.80}, which is not in the list of allowed operators{now}")


def find_strings(name: str, argument: str, groups: Sequence[str], device: str) -> Sequence[str]:
    """The texts that an operator's argument may be, in a run with these groups on this kind of device."""
    library = name.partition(".")[0]
    if library == "_c10d_functional" and argument in ("group_name", "reduce_op"):
        return groups if argument == "group_name" else REDUCTIONS
    if name == str(FROM_HOST) and argument == "device":
        return (device,)
    return LAYER_OP_TEXTS.get(name, _added.get(name, {})).get(argument, ())
