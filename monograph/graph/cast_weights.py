"""Values that change only when the weights do: casts of parameters, alone or one below the other, also to float8.

A node with such a value is tagged `once` by the pass cache_cast_weights. The executor may compute it after an
update instead of in every micro-batch, or let the optimizer write it; running it in every step is right too.
"""

import math
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from monograph.compat.ops import ATEN
from monograph.graph.query import value_of
from monograph.graph.signature import PARAMETERS
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.graph.tensor_meta import TensorMeta, meta_of
from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_CAST_BOTH

FLOAT8_CASTS = (FLOAT8_CAST, FLOAT8_CAST_BOTH)


class Float8Part(NamedTuple):
    """One result of a cast to float8."""

    target: Any
    """The op that casts."""
    args: tuple[Any, ...]
    """What it is given besides the value: the dtype, and how it scales."""
    result: int | None = None
    """Which of its results; None for all of them."""


class CachedCast(NamedTuple):
    """What a value is made of: parameters of one dtype, one below the other; and then perhaps in float8."""

    slots: tuple[str, ...]
    dtype: torch.dtype
    float8: Float8Part | None = None


def find_castings(graph: StepGraph) -> dict[Node, CachedCast]:
    """Every node that only casts parameters, or puts such casts one below the other."""
    pairs = zip(graph.placeholders, graph.inputs, strict=True)
    slots = {node: spec.name for node, spec in pairs if spec.kind in PARAMETERS}
    found: dict[Node, CachedCast] = {}
    for node in graph.nodes:
        if node.target is ATEN._to_copy.default and set(node.kwargs) == {"dtype"} and node.args[0] in slots:
            form = meta_of(value_of(node))
            if form.shape and is_dense(form):
                found[node] = CachedCast((slots[node.args[0]],), value_of(node).dtype)  # type: ignore[index]
        elif node.target in FLOAT8_CASTS and node.args[0] in found:
            if found[node.args[0]].float8 is None:  # type: ignore[index]
                owner, part = found[node.args[0]], Float8Part(node.target, tuple(node.args[1:]))  # type: ignore[index]
                found[node] = owner._replace(float8=part)
        elif node.target is operator.getitem and node.args[0] in found:
            owner = found[node.args[0]]  # type: ignore[index]
            if owner.float8 is not None:
                found[node] = owner._replace(float8=owner.float8._replace(result=node.args[1]))  # type: ignore[arg-type]
        elif node.target is ATEN.cat.default and (len(node.args) == 1 or node.args[1] == 0):
            parts = [found.get(each) for each in node.all_input_nodes]
            known = [part for part in parts if part is not None]
            is_whole = len(known) == len(parts) == len(node.args[0])  # type: ignore[arg-type]
            if is_whole and len({part.dtype for part in known}) == 1 and all(map(_is_plain, known)):
                found[node] = CachedCast(tuple(part.slots[0] for part in known), known[0].dtype)
    return found


def _is_plain(part: CachedCast) -> bool:
    return len(part.slots) == 1 and part.float8 is None


def is_dense(form: TensorMeta) -> bool:
    """Whether the last dim's numbers are next to each other, and rows follow rows."""
    sizes: Any = form.shape
    return all(stride == math.prod(sizes[index + 1 :]) for index, stride in enumerate(form.strides))


def find_cached_casts(graph: StepGraph) -> Iterator[tuple[Node, CachedCast]]:
    """The tagged nodes that others read, with what they are made of."""
    castings: dict[Node, CachedCast] | None = None
    for node in graph.nodes:
        if is_cached_cast(node) and any(not is_cached_cast(user) for user in node.users):
            castings = find_castings(graph) if castings is None else castings
            yield node, castings[node]


def is_cached_cast(node: Node) -> bool:
    """Whether a node's value changes only with the weights."""
    return node.op == "call_function" and tag_of(node).once
