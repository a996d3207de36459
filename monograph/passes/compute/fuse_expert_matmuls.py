"""Fuse experts' grouped matmuls with SwiGLU, and two of them with their sum."""

import operator
from dataclasses import replace
from typing import Any, NamedTuple

from torch.fx import Graph, Node

from monograph.compat.ops import ATEN
from monograph.graph.edit import call_before, erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.query import is_mutation, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, tag_of
from monograph.kernels.experts import EXPERT_MATMUL, EXPERT_MATMUL_SUM, EXPERT_SWIGLU
from monograph.kernels.swiglu import SWIGLU
from monograph.passes.base import Pass
from monograph.passes.clean.remove_dead_code import plan_dead
from monograph.passes.compute.fusions import find_between

GROUPED_MM = ATEN._grouped_mm.default
_LAST_TWO = ({1, 2}, {-1, -2}, {1, -1}, {2, -2})
"""What a transpose of stacked weights may be written as."""


class FuseExpertMatmuls(Pass):
    """Grouped matmuls of experts become custom ops: with SwiGLU in the epilogue, two added up, or one alone.

    Before:  a = _grouped_mm(x, w1.T, ends);  b = _grouped_mm(x, w3.T, ends);  h = swiglu(a, b)
             d = add(_grouped_mm(g, w3, ends), _grouped_mm(f, w1, ends))
    After:   a, b, h = expert_swiglu(x, w1, w3, ends);  d = expert_matmul_sum(g, w3, f, w1, ends)
    Why:     both matmuls read the same rows, and the gate and the sum read again what was just computed: of five layers
             of deepseek_v3_bench_moe on an H200 4.6 of 176 ms. The sum is rounded once instead of three times.
    """

    bitwise = False

    def run(self, graph: StepGraph, facts: Facts) -> str:
        inside = graph.module.graph
        gates = [gate for node in graph.nodes if (gate := plan_gate(node))]
        for each in gates:
            apply_gate(inside, each)
        sums = [total for node in graph.nodes if (total := plan_sum(node))]
        for each in sums:
            apply_sum(inside, each)
        erase(plan_dead(graph))
        singles = [single for node in graph.nodes if (single := find_matmul(node)) and single.is_transposed]
        for node, *args, _ in singles:
            redirect(node, call_before(inside, node, EXPERT_MATMUL, tuple(args), _made(node)))
        erase(plan_dead(graph))
        return f"{len(gates)} SwiGLU, {len(sums)} sum and {len(singles)} plain grouped matmuls fused"


class ExpertMatmul(NamedTuple):
    """A grouped matmul of rows by stacked weights."""

    node: Node
    rows: Node
    weight: Node
    """As it is stored."""
    ends: Node
    is_transposed: bool
    """Whether the weight is transposed, so that its last dim is summed over."""


class Joined(NamedTuple):
    """SwiGLU of two grouped matmuls, or their sum."""

    node: Node
    one: ExpertMatmul
    other: ExpertMatmul


def find_matmul(node: Any) -> ExpertMatmul | None:
    """What a grouped matmul of rows multiplies, where the weight is dense."""
    if not isinstance(node, Node) or node.target is not GROUPED_MM or len(node.args) != 3 or node.kwargs:
        return None
    rows, weight, ends = node.args
    if not all(isinstance(each, Node) for each in node.args) or value_of(node).dim() != 2:
        return None
    is_transposed = False
    while weight.target is ATEN.transpose.int and set(weight.args[1:]) in _LAST_TWO:  # type: ignore[union-attr]
        weight, is_transposed = weight.args[0], not is_transposed  # type: ignore[union-attr]
    if not value_of(weight).is_contiguous() or value_of(rows).stride(-1) != 1:  # type: ignore[arg-type]
        return None
    return ExpertMatmul(node, rows, weight, ends, is_transposed)  # type: ignore[arg-type]


def plan_gate(node: Node) -> Joined | None:
    """A gate of two matmuls of the same rows."""
    if node.target is not SWIGLU:
        return None
    one, other = (find_matmul(each) for each in node.args[:2])
    if one is None or other is None or not (one.is_transposed and other.is_transposed):
        return None
    is_alike = one.rows is other.rows and one.ends is other.ends and one.node is not other.node
    is_alike = is_alike and value_of(one.weight).shape == value_of(other.weight).shape
    return Joined(node, one, other) if is_alike and _can_join(node, one.node, other.node) else None


def plan_sum(node: Node) -> Joined | None:
    """The sum of two matmuls that nothing else reads."""
    if node.target is not ATEN.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    one, other = (find_matmul(each) for each in node.args)
    if one is None or other is None or one.is_transposed or other.is_transposed or one.ends is not other.ends:
        return None
    if len(one.node.users) > 1 or len(other.node.users) > 1 or one.node is other.node:
        return None
    is_alike = value_of(one.weight).shape == value_of(other.weight).shape
    return Joined(node, one, other) if is_alike and _can_join(node, one.node, other.node) else None


def _can_join(last: Node, one: Node, other: Node) -> bool:
    """Whether all may be computed where the later matmul is: of one chunk and direction, nothing reads the earlier one
    before, and nothing is written meanwhile."""
    own = tag_of(last)
    if any((tag_of(each).direction, tag_of(each).chunk) != (own.direction, own.chunk) for each in (one, other)):
        return False
    first, later = sorted((one, other))
    if any(user < later for user in first.users):
        return False
    return not any(is_mutation(each) for each in find_between(first, last))


def apply_gate(graph: Graph, gate: Joined) -> None:
    """Compute both matmuls and the gate where the later matmul was: what reads either comes after it."""
    node, one, other = gate
    later = max(one.node, other.node)
    whole = call_before(graph, later, EXPERT_SWIGLU, (one.rows, one.weight, other.weight, one.ends), _made(node))
    for index, old in enumerate((one.node, other.node, node)):
        redirect(old, call_before(graph, later, operator.getitem, (whole, index), _made(old)))


def apply_sum(graph: Graph, total: Joined) -> None:
    """Compute both matmuls and their sum where the sum was."""
    node, one, other = total
    args = one.rows, one.weight, other.rows, other.weight, one.ends
    redirect(node, call_before(graph, node, EXPERT_MATMUL_SUM, args, _made(node)))


def _made(node: Node) -> Tag:
    return replace(tag_of(node), made_by=FuseExpertMatmuls.name())
