"""The kernels of our own ops that a step will launch, built before it runs: from the forms of their arguments alone.

On a GPU a step without compiled parts spends most of its first run on building them. An artifact has them built.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from monograph.compat.triton import HAS_TRITON
from monograph.graph.cast_weights import find_cached_casts, find_joined
from monograph.graph.encode import GraphFileError, decode_meta, encode_meta, find_dtype, name_dtype
from monograph.graph.invariants import find_gradients
from monograph.graph.query import value_of
from monograph.graph.signature import InputKind
from monograph.graph.step_graph import StepGraph
from monograph.graph.tensor_meta import TensorMeta, meta_of
from monograph.kernels import square_sum_on_gpu, update_on_gpu
from monograph.kernels.attention import ATTENTION, ATTENTION_BACKWARD
from monograph.kernels.catalog import find_kernel_ops
from monograph.kernels.custom_op import CustomOp
from monograph.kernels.launch import only_built
from monograph.kernels.update import StateForm

_UNKNOWN_SIZE = 1024
"""What a size that the data decides is taken for: kernels only ask whether it is a multiple of sixteen."""
UPDATE, SQUARES = "update", "square_sum"
"""The optimizer's kernel, called with the forms of a parameter, its gradient, its moments, its copy and its remainder;
the norm's, with a gradient's."""
_LONGEST = ("matmul_swiglu", "matmul_swiglu_backward", "expert_swiglu", "expert_matmul", "expert_matmul_sum")
"""What takes longest to build, and is begun first: half a second of a first step."""
_TUNED_AS_THEY_RUN = (ATTENTION, ATTENTION_BACKWARD)
"""Ops that are not built ahead, because others than us have kernels for them, too."""
Argument = TensorMeta | torch.dtype | bool | int | float | None
_TYPES: dict[str, tuple[type, ...]] = {
    "Tensor": (TensorMeta,),
    "Optional[Tensor]": (TensorMeta, NoneType),
    "ScalarType": (torch.dtype,),
    "bool": (bool,),
    "int": (int,),
    "float": (float,),
}
"""What an op's schema calls a type -> what may be given."""


class KernelCall(NamedTuple):
    """A kernel and what it is called with: tensors by their forms, and numbers."""

    name: str
    args: tuple[Argument, ...]


def find_calls(graph: StepGraph, *, is_compiled: bool = False) -> list[KernelCall]:
    """Every distinct call of an op of ours; where a compiler follows, only of those that it does not replace."""
    return find_op_calls(graph, (each for each in find_prebuilt_ops() if not (is_compiled and each.decompose)))


def find_op_calls(graph: StepGraph, ops: Iterable[CustomOp]) -> list[KernelCall]:
    """Every distinct call of these ops."""
    names = {each.op: each.name for each in ops}
    found: dict[KernelCall, None] = {}
    for node in graph.nodes:
        if node.target in names:
            args: Any = torch.fx.node.map_arg(node.args, lambda each: meta_of(value_of(each)))
            found[KernelCall(names[node.target], tuple(args))] = None
    return list(found)


def find_tunable_calls(graph: StepGraph) -> list[KernelCall]:
    """Every distinct call of an op with kernels that may have settings to tune."""
    return find_op_calls(graph, (each for each in find_kernel_ops() if each.prebuild or each.op in _TUNED_AS_THEY_RUN))


def find_prebuilt_ops() -> list[CustomOp]:
    """The custom ops whose kernels can be built before they run."""
    return [each for each in find_kernel_ops() if each.prebuild]


def find_updates(graph: StepGraph, state: StateForm, sums: torch.dtype | None = None) -> list[KernelCall]:
    """The optimizer's calls, one for all dtypes that a parameter, its gradient, its moments, its copy and its remainder
    have, and the norm's. Gradients of several micro-batches are added in `sums`, or wider."""
    remainder = torch.int16 if state.has_remainders else None
    stored = {spec.name: spec.dtype for spec in graph.inputs if spec.kind is InputKind.STATE}
    casts = {each for _, each in find_cached_casts(graph)} - find_joined(graph)
    copied = Counter(slot for each in casts for slot in each.slots)
    copies = {slot: each.dtype for each in casts for slot in each.slots if copied[slot] == 1}
    gradients = {slot: meta_of(value_of(node)).dtype for slot, node in find_gradients(graph)}
    read = [(slot, dtype) for slot, dtype in gradients.items()]
    if sums is not None:
        read += [(slot, torch.promote_types(stored[slot], sums)) for slot in gradients]
    found = dict.fromkeys((stored[slot], dtype, state.moments, copies.get(slot), remainder) for slot, dtype in read)

    def form(dtype: torch.dtype | None) -> TensorMeta | None:
        return TensorMeta(dtype, (1,), (1,), torch.device("cuda")) if dtype else None

    updates = [KernelCall(UPDATE, tuple(map(form, dtypes))) for dtypes in found]
    return updates + [KernelCall(SQUARES, (form(dtype),)) for dtype in dict.fromkeys(dtype for _, dtype in read)]


def build_calls(calls: Iterable[KernelCall]) -> None:
    """Build the kernels, or find them where Triton keeps them; nothing without a GPU.

    Their arguments are tensors on the meta device: fake ones would be on a GPU, but torch imports its compiler for the
    first of them, half a second of every start from an artifact.
    """
    if not (HAS_TRITON and torch.cuda.is_available()):
        return
    with only_built():
        for name, args in sorted(calls, key=lambda call: call.name not in _LONGEST):
            find_builder(name)(*(make_tensor(arg) if isinstance(arg, TensorMeta) else arg for arg in args))


def find_builder(name: str) -> Callable[..., Any]:
    """What launches a kernel."""
    for own in find_prebuilt_ops():
        if own.name == name and own.launcher is not None:
            return own.launcher

    def update(
        parameter: Tensor, gradient: Tensor, moment: Tensor, copy: Tensor | None, remainder: Tensor | None
    ) -> None:
        dtypes = (parameter.dtype, gradient.dtype, moment.dtype, moment.dtype)
        flat = [torch.empty(_UNKNOWN_SIZE, dtype=dtype, device="meta") for dtype in dtypes]
        numbers = [torch.empty((), device="meta") for _ in range(6)]
        copy, remainder = (
            None if each is None else torch.empty(_UNKNOWN_SIZE, dtype=each.dtype, device="meta")
            for each in (copy, remainder)
        )
        random: list[Tensor | None] = [None, None]
        if moment.dtype is torch.bfloat16 and (parameter.dtype is not torch.bfloat16 or remainder is not None):
            random = [torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((), (1,))]
        update_on_gpu.update(*flat, *numbers, copy, *random, remainder, beta1=0.0, beta2=0.0, eps=0.0)

    def squares(gradient: Tensor) -> None:
        square_sum_on_gpu.square_parts([torch.empty(_UNKNOWN_SIZE, dtype=gradient.dtype, device="meta")])

    builders: dict[str, Callable[..., Any]] = {UPDATE: update, SQUARES: squares}
    return builders[name]


def make_tensor(form: TensorMeta) -> Tensor:
    """A tensor of this form that has no memory."""
    shape, strides = (
        [size if isinstance(size, int) else _UNKNOWN_SIZE for size in sizes] for sizes in (form.shape, form.strides)
    )
    return torch.empty_strided(shape, strides, dtype=form.dtype, device="meta")


def calls_to_data(calls: Iterable[KernelCall]) -> list[Any]:
    """Calls as objects that JSON can write."""
    return [[call.name, [_encode(arg) for arg in call.args]] for call in calls]


def _encode(arg: Argument) -> Any:
    if isinstance(arg, TensorMeta):
        return encode_meta(arg)
    return name_dtype(arg) if isinstance(arg, torch.dtype) else arg


def _decode(data: Any) -> Any:
    if isinstance(data, list):
        return decode_meta(data)
    return find_dtype(data) if isinstance(data, str) else data


def calls_from_data(data: Any) -> list[KernelCall]:
    """What `calls_to_data` wrote; anything else is an error."""
    try:
        found = [(name, tuple(map(_decode, args))) for name, args in data]
        if not all(is_known(name, args) for name, args in found):
            raise GraphFileError("a call of an unknown kernel")
    except (TypeError, ValueError) as error:
        raise GraphFileError(f"this is not a list of calls: {error}") from None
    return [KernelCall(name, args) for name, args in found]


def is_known(name: str, args: tuple[Any, ...]) -> bool:
    """Whether there is such a kernel, and it takes such arguments."""
    wanted = {own.name: [str(each.real_type) for each in own.op._schema.arguments] for own in find_prebuilt_ops()}
    wanted |= {UPDATE: ["Tensor"] * 3 + ["Optional[Tensor]"] * 2, SQUARES: ["Tensor"]}
    kinds = wanted.get(name)
    if kinds is None or len(kinds) != len(args):
        return False
    return all(type(arg) in _TYPES.get(kind, ()) and is_sound(arg) for arg, kind in zip(args, kinds, strict=True))


def is_sound(arg: Argument) -> bool:
    """Whether there can be such a tensor, or such a number of tokens."""
    if isinstance(arg, TensorMeta):
        sizes = [size for size in (*arg.shape, *arg.strides) if isinstance(size, int)]
        return len(arg.shape) == len(arg.strides) and min(sizes, default=0) >= 0
    return type(arg) is not int or arg > 0
