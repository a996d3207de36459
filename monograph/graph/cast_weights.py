"""Values that change only when the weights do: casts of parameters, alone or one below the other.

A node with such a value is tagged `once` by the passes cache_cast_weights, cache_float8_weights and join_parameters.
The executor may compute a cast to bfloat16 after an update instead of in every micro-batch, or let the optimizer write
it, and a cast to float8 in the first micro-batch of an update alone; parameters that are only joined it may store that
way. Running the node in every step is right too.
"""

import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from monograph.compat.ops import ATEN, UNSAFE_VIEW
from monograph.graph.query import value_of
from monograph.graph.signature import PARAMETERS
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.graph.tensor_meta import TensorMeta, meta_of
from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_CAST_BOTH

FLOAT8_CASTS = (FLOAT8_CAST, FLOAT8_CAST_BOTH)
_SAME_NUMBERS = (ATEN._to_copy.default, ATEN.cat.default, ATEN.view.default, UNSAFE_VIEW)
"""Ops that make of weights what casts to float8 read."""


_ALIGNMENT = 16
"""Kernels expect a parameter to begin at a multiple of so many bytes."""


class CachedCast(NamedTuple):
    """What a value is made of: parameters of one dtype, one below the other."""

    slots: tuple[str, ...]
    dtype: torch.dtype


def find_castings(graph: StepGraph) -> dict[Node, CachedCast]:
    """Every node that only casts parameters, or puts such casts, or parameters, one below the other."""
    pairs = zip(graph.placeholders, graph.inputs, strict=True)
    slots = {node: spec.name for node, spec in pairs if spec.kind in PARAMETERS}
    stored = {node: CachedCast((slot,), value_of(node).dtype) for node, slot in slots.items() if can_be_joined(node)}
    found: dict[Node, CachedCast] = {}
    for node in graph.nodes:
        if node.target is ATEN._to_copy.default and set(node.kwargs) == {"dtype"} and node.args[0] in slots:
            form = meta_of(value_of(node))
            if form.shape and is_dense(form):
                found[node] = CachedCast((slots[node.args[0]],), value_of(node).dtype)  # type: ignore[index]
        elif node.target is ATEN.cat.default and (len(node.args) == 1 or node.args[1] == 0):
            parts = [found.get(each) or stored.get(each) for each in node.all_input_nodes]
            known = [part for part in parts if part is not None]
            is_whole = len(known) == len(parts) == len(node.args[0])  # type: ignore[arg-type]
            if is_whole and len({part.dtype for part in known}) == 1 and all(len(part.slots) == 1 for part in known):
                found[node] = CachedCast(tuple(part.slots[0] for part in known), known[0].dtype)
    return found


def find_stored_dtypes(graph: StepGraph) -> dict[str, torch.dtype]:
    """Slot -> the dtype its parameter is stored in."""
    return {spec.name: spec.dtype for spec in graph.inputs if spec.kind in PARAMETERS}


def can_be_joined(parameter: Node) -> bool:
    """Whether another parameter may be stored right after this one."""
    form = meta_of(value_of(parameter))
    return bool(form.shape) and is_dense(form) and math.prod(form.shape) * form.dtype.itemsize % _ALIGNMENT == 0


def find_joined(graph: StepGraph) -> set[CachedCast]:
    """Cached values that are no copies: parameters in their own dtype, each stored with the first that has it."""
    return set(pick_joined(graph, find_cached_casts(graph)).values())


def pick_joined(graph: StepGraph, casts: Iterable[tuple[Node, CachedCast]]) -> dict[Node, CachedCast]:
    """Of these, the nodes that only join parameters; a parameter can be a view of one buffer, the first it is in."""
    stored = find_stored_dtypes(graph)
    found: dict[Node, CachedCast] = {}
    buffers: dict[str, CachedCast] = {}
    for node, cast in casts:
        is_plain = {stored[slot] for slot in cast.slots} == {cast.dtype}
        if is_plain and all(buffers.get(slot, cast) == cast for slot in cast.slots):
            found[node] = cast
            buffers |= dict.fromkeys(cast.slots, cast)
    return found


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
    """Whether a node's value is read from the cache of cast weights."""
    return node.op == "call_function" and tag_of(node).once and not is_cached_float8(node)


def find_weight_values(graph: StepGraph) -> set[Node]:
    """Parameters, and what copies, views and concatenations make of nothing else."""
    pairs = zip(graph.placeholders, graph.inputs, strict=True)
    found = {node for node, spec in pairs if spec.kind in PARAMETERS}
    for node in graph.nodes:
        if node.target in _SAME_NUMBERS and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found


def find_float8_castings(graph: StepGraph) -> list[Node]:
    """Every cast of weights to float8, each followed by its results."""
    weights = find_weight_values(graph)
    casts = [node for node in graph.nodes if node.target in FLOAT8_CASTS and node.args[0] in weights]
    return [
        each for cast in casts for each in (cast, *(user for user in cast.users if user.target is operator.getitem))
    ]


def find_layouts(cast: Node) -> tuple[bool, ...]:
    """Whether each value and scale that a cast to float8 yields is transposed."""
    return (False, True) if cast.target is FLOAT8_CAST_BOTH else (bool(cast.args[3]),)


def is_cached_float8(node: Node) -> bool:
    """Whether a node casts weights to float8, or is a result of that, in the first micro-batch of an update alone."""
    if node.op != "call_function" or not tag_of(node).once:
        return False
    owner = node.args[0] if node.target is operator.getitem else node
    return isinstance(owner, Node) and owner.target in FLOAT8_CASTS


def find_float8_only(graph: StepGraph) -> set[Node]:
    """Cached casts to float8, and what only they read."""
    weights = find_weight_values(graph)
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        is_unread = node in weights and node.op != "placeholder" and found.issuperset(node.users)
        if is_cached_float8(node) or is_unread:
            found.add(node)
    return found
