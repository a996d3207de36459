"""A node of a graph as a function of its operands' values, prepared once and called for every class of ranks."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from monograph.compat.ops import GROUPED_MM
from monograph.kernels.custom_op import CUSTOM_OPS
from monograph.verify.simulate.precision import WideMode, run_reference, widen

Fill = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class PreparedCall:
    """A call with places for the values of `operands`."""

    target: Callable[..., Any]
    operands: tuple[Node, ...]
    fill_args: Fill
    fill_kwargs: Fill

    def __call__(self, values: Sequence[Any]) -> Any:
        """The call's result on these values of its operands."""
        return self.target(*self.fill_args(values), **self.fill_kwargs(values))


def prepare_call(node: Node, *, is_wide: bool) -> PreparedCall:
    """The call that a node makes; in fp64, narrower dtypes among its arguments are fp64 and custom ops references."""
    operands = tuple(dict.fromkeys(node.all_input_nodes))
    places = {operand: place for place, operand in enumerate(operands)}
    target: Any = node.target
    if is_wide and target in CUSTOM_OPS:
        target = _WideReference(node.target)
    elif is_wide and target is GROUPED_MM:
        target = grouped_matmul
    return PreparedCall(target, operands, *(_fill(value, places, is_wide) for value in (node.args, dict(node.kwargs))))


class _WideReference:
    """A custom op's reference in fp64."""

    def __init__(self, op: Any) -> None:
        self.op = op

    def __call__(self, *args: Any) -> Any:
        with WideMode():
            return run_reference(self.op, args)


def grouped_matmul(left: Any, right: Any, ends: Any = None, *_: Any, **__: Any) -> Any:
    """torch's grouped matmul for dtypes that it does not take: one matmul for each group of rows, or of columns."""
    bounds = [0, *ends.tolist()]
    spans = [slice(start, stop) for start, stop in itertools.pairwise(bounds)]
    if left.dim() == 2 and right.dim() == 3:
        out = left.new_zeros(left.shape[0], right.shape[2])
        for span, weight in zip(spans, right, strict=True):
            out[span] = left[span] @ weight
        return out
    if left.dim() == 2:
        return torch.stack([left[:, span] @ right[span] for span in spans])
    out = left.new_zeros(left.shape[1], right.shape[1])
    for span, weight in zip(spans, left, strict=True):
        out[:, span] = weight @ right[:, span]
    return out


def _fill(value: Any, places: dict[Node, int], is_wide: bool) -> Fill:
    """A function from the operands' values to `value` with them in their places."""
    if isinstance(value, Node):
        place = places[value]
        return lambda values: values[place]
    if isinstance(value, dict):
        named = [(name, _fill(entry, places, is_wide)) for name, entry in value.items()]
        return lambda values: {name: fill(values) for name, fill in named}
    if isinstance(value, slice):
        ends = [_fill(end, places, is_wide) for end in (value.start, value.stop, value.step)]
        return lambda values: slice(*(fill(values) for fill in ends))
    if isinstance(value, list | tuple):
        fills = [_fill(entry, places, is_wide) for entry in value]
        if isinstance(value, tuple):
            return lambda values: tuple([fill(values) for fill in fills])
        return lambda values: [fill(values) for fill in fills]
    constant = widen(value) if is_wide else value
    return lambda values: constant
