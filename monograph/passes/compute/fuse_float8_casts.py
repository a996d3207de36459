"""Kernels that write float8 for the matmuls that read them."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import Graph, Node

from monograph.graph.edit import call_before, erase
from monograph.graph.facts import Facts
from monograph.graph.query import value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_CAST_BOTH
from monograph.kernels.float8_norm import FLOAT8_ADD_NORM, FLOAT8_NORM
from monograph.kernels.float8_swiglu import FLOAT8_SWIGLU, FLOAT8_SWIGLU_BACKWARD
from monograph.kernels.norm import ADD_NORM, NORM
from monograph.kernels.swiglu import SWIGLU, SWIGLU_BACKWARD_PACKED_RECOMPUTE
from monograph.passes.base import Pass
from monograph.passes.clean.remove_dead_code import plan_dead
from monograph.passes.compute.float8_columns import apply_columns, plan_columns, redirect_parts
from monograph.passes.compute.float8_gathers import apply_gathers, plan_gathers
from monograph.passes.compute.fusions import VIEWS, redirect_results
from monograph.plurals import counted

_NORMS = {NORM: (FLOAT8_NORM, 0), ADD_NORM: (FLOAT8_ADD_NORM, 1)}
"""A norm -> its float8 form, and which result the norm itself is; numbers, scales and amax come in its place."""


class FuseFloat8Casts(Pass):
    """Ops write float8 where only casts read what they compute; casts by rows look at columns for later casts.

    Before:  h = swiglu(a, up);  h8 = float8_cast(h)   d, h = swiglu_backward_packed_recompute(g, a, up)
                                                       d1, d2 = float8_cast_both(d);  h2 = float8_cast(t(h))
             y, r = norm(x, v);  y8 = float8_cast(y)   ...  y = norm again;  y2 = float8_cast(t(y))
             e8 = float8_cast(index(y, rows))
             w1 = float8_cast(w)                       ...  w2 = float8_cast(t(w))
    After:   h8 = float8_swiglu(a, up)                 d1, d2, h2 = float8_swiglu_backward(g, a, up)
             y8, amax, r = float8_norm(x, v)           ...  y = norm again;  y2 = float8_cast_transposed(y, amax)
             e8 = float8_gather_rows(float8_cast(y), rows)
             w1, amax = float8_cast_amax(w)            ...  w2 = float8_cast_transposed(w, amax)
    Why:     values as wide as the hidden layer are written in bfloat16, searched for largest magnitudes and read again
             to be cast, all at the speed of memory. A kernel that has a value in its registers casts it there. Weights
             and saved activations are cast by rows in forward and transposed in backward: the first cast reads them
             anyway, so it also finds what the second has to know, a number for each column. Tokens that go to
             several experts are cast once, before their rows are gathered. Every value is rounded to
             bfloat16 first, as if it had been written, and maxima have no order, so every bit stays.
    """

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = [found for node in graph.nodes if (found := plan_fusion(node))]
        for each in plan:
            apply_fusion(graph.module.graph, each)
        erase(plan_dead(graph))
        gathers = plan_gathers(graph.module.graph)
        apply_gathers(graph.module.graph, gathers, self.name())
        erase(plan_dead(graph))
        pairs = plan_columns(graph.module.graph)
        apply_columns(graph.module.graph, pairs, self.name())
        erase(plan_dead(graph))
        known = f"{counted(len(pairs), 'transposed cast')} with a known amax"
        return f"fused: float8 output of {counted(len(plan), 'op')}, {counted(len(gathers), 'float8 gather')}, {known}"


@dataclass(frozen=True)
class CastFusion:
    """An op, the op that takes its place, and which results of that are those of which cast."""

    producer: Node
    target: object
    casts: Sequence[tuple[Node, int]]
    """A cast, and the index of its first result among those of the new op."""
    others: Mapping[int, int]
    """What else the op returns: index of a result -> its index among those of the new op."""


def plan_fusion(node: Node) -> CastFusion | None:
    """A producer of values that only casts by rows or columns read, as its float8 form writes them."""
    if node.target is SWIGLU:
        cast = find_cast(node)
        if cast is not None and is_cast(cast, FLOAT8_CAST, is_transposed=False):
            return CastFusion(node, FLOAT8_SWIGLU, [(cast, 0)], {})
    if node.target is SWIGLU_BACKWARD_PACKED_RECOMPUTE:
        both, gate = (find_cast(part) if (part := find_part(node, index)) else None for index in (0, 1))
        if both is None or gate is None:
            return None
        if is_cast(both, FLOAT8_CAST_BOTH) and is_cast(gate, FLOAT8_CAST, is_transposed=True):
            return CastFusion(node, FLOAT8_SWIGLU_BACKWARD, [(both, 0), (gate, 4)], {})
    if node.target in _NORMS:
        target, index = _NORMS[node.target]
        part = find_part(node, index)
        cast = find_cast(part) if part else None
        if cast is not None and is_cast(cast, FLOAT8_CAST, is_transposed=False):
            return CastFusion(node, target, [(cast, index)], {0: 0, index + 1: index + 3})
    return None


def find_part(node: Node, index: int) -> Node | None:
    """The one node that takes a result of an op."""
    found = [user for user in node.users if user.target is operator.getitem and user.args[1] == index]
    return found[0] if len(found) == 1 else None


def find_cast(node: Node) -> Node | None:
    """The cast that alone reads a value, or its view as a matrix of the same rows."""
    channels = value_of(node).shape[-1]
    while len(node.users) == 1:
        (node,) = node.users
        if node.target in (FLOAT8_CAST, FLOAT8_CAST_BOTH):
            value = value_of(node.args[0])  # type: ignore[arg-type]
            return node if value.dim() == 2 and value.shape[-1] == channels else None
        if node.target not in VIEWS:
            return None
    return None


def is_cast(node: Node, target: object, *, is_transposed: bool | None = None) -> bool:
    """Whether a node is this cast, to e4m3 with scales of rows."""
    wanted = (torch.float8_e4m3fn, True, *([] if is_transposed is None else [is_transposed]))
    return node.target is target and tuple(node.args[1:]) == wanted


def apply_fusion(graph: Graph, fusion: CastFusion) -> None:
    """Compute the float8 form of an op where the op was, and let readers of the casts read that."""
    producer, name = fusion.producer, FuseFloat8Casts.name()
    tag = replace(tag_of(producer), made_by=name)
    whole = call_before(graph, producer, fusion.target, producer.args, tag)
    for cast, first in fusion.casts:
        redirect_parts(graph, cast, whole, name, first)
    redirect_results(graph, producer, whole, fusion.others)
