"""Matmuls that compute the gate of what they make."""

import operator
from dataclasses import replace
from typing import NamedTuple

from torch.fx import Graph, Node

from monograph.compat.ops import ATEN
from monograph.graph.edit import call_before, erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.query import has_symbols, is_mutation, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, tag_of
from monograph.kernels.matmul_swiglu import MATMUL_SWIGLU, MATMUL_SWIGLU_BACKWARD
from monograph.kernels.swiglu import SWIGLU, SWIGLU_BACKWARD_PACKED_RECOMPUTE
from monograph.passes.base import Pass
from monograph.passes.clean.remove_dead_code import plan_dead
from monograph.passes.compute.fusions import find_between, find_source, redirect_results
from monograph.plurals import counted


class FuseSwigluEpilogue(Pass):
    """A matmul and the gate of its result become one op, and so do a matmul and the gate's backward that reads it.

    Before:  both = mm(x, t(w));  a, up = split(both);  h = gate(a, up);  ...  d, h = swiglu_backward(mm(g, v), a, up)
    After:   both, h = matmul_swiglu(x, w);  a, up = split(both);  ...  d, h = matmul_swiglu_backward(g, v, a, up)
    Why:     values as wide as the hidden layer are read again although they just were in the processor. A kernel that
             finishes one tile while it multiplies the next has gates for free. Needs matmuls that are joined, and
             SwiGLU as a custom op; a backward only where the gate is recomputed there, as all policies but
             `all` have it. Bits change where such a kernel sums in another order than torch's matmuls.
    """

    bitwise = False

    def run(self, graph: StepGraph, facts: Facts) -> str:
        inside = graph.module.graph
        gates = list({found.matmul: found for node in graph.nodes if (found := plan_gate(node))}.values())
        backs = [found for node in graph.nodes if (found := plan_backward(node))]
        for gate in gates:
            apply_gate(inside, gate)
        for back in backs:
            apply_backward(inside, back)
        erase(plan_dead(graph))
        return f"SwiGLU fused into {len(gates)} forward and {counted(len(backs), 'backward matmul')}"


class Fusion(NamedTuple):
    """A matmul and the op of a gate that reads it."""

    matmul: Node
    gate: Node
    weight: Node


def plan_gate(gate: Node) -> Fusion | None:
    """A gate whose inputs are the two halves of one matmul with a weight."""
    if gate.target is not SWIGLU:
        return None
    halves = [find_source(each) for each in gate.args if isinstance(each, Node)]
    if [half.target for half in halves] != [operator.getitem] * 2 or [half.args[1] for half in halves] != [0, 1]:
        return None
    split = halves[0].args[0]
    if not isinstance(split, Node) or split is not halves[1].args[0] or not is_halved(split):
        return None
    matmul = split.args[0]
    if not isinstance(matmul, Node) or matmul.target is not ATEN.mm.default:
        return None
    turned = matmul.args[1]
    if not isinstance(turned, Node) or turned.target is not ATEN.t.default:
        return None
    (weight,) = turned.args
    assert isinstance(weight, Node)
    return Fusion(matmul, gate, weight) if can_fuse(matmul, gate) and _is_dense(weight) else None


def plan_backward(gate: Node) -> Fusion | None:
    """A gate's backward whose gradient is a matmul that nothing else reads."""
    if gate.target is not SWIGLU_BACKWARD_PACKED_RECOMPUTE or not isinstance(gate.args[0], Node):
        return None
    node, matmul, weight = gate.args[0], find_source(gate.args[0]), None
    if matmul.target is ATEN.mm.default:
        weight = matmul.args[1]
    if not isinstance(weight, Node) or not _is_dense(weight) or not can_fuse(matmul, gate):
        return None
    if any(value_of(each).shape[-1] != value_of(matmul).shape[1] for each in gate.all_input_nodes):
        return None  # cut into other rows: what is side by side would be somewhere else
    while len(node.users) == 1 and node is not matmul:
        node = node.args[0]  # type: ignore[assignment]
    return Fusion(matmul, gate, weight) if node is matmul and len(matmul.users) == 1 else None


def is_halved(split: Node) -> bool:
    """Whether a matrix is split into two parts: those of a gate are equal, and there must not be a third."""
    if split.target is not ATEN.split_with_sizes.default or tuple(split.args[2:]) not in ((1,), (-1,)):
        return False
    sizes = split.args[1]
    return isinstance(sizes, list | tuple) and len(sizes) == 2


def can_fuse(matmul: Node, gate: Node) -> bool:
    """Whether a gate may be computed as soon as its matmul is: all sizes known, and nothing written meanwhile."""
    one, other = tag_of(matmul), tag_of(gate)
    if one.direction is not other.direction or one.chunk != other.chunk or has_symbols(value_of(matmul)):
        return False
    return value_of(matmul).dim() == 2 and not any(map(is_mutation, find_between(matmul, gate)))


def apply_gate(graph: Graph, fusion: Fusion) -> None:
    """Compute a gate with the matmul before it."""
    matmul, gate, weight = fusion
    whole = call_before(graph, matmul, MATMUL_SWIGLU, (matmul.args[0], weight), _made(gate))
    both, gated = (
        call_before(graph, matmul, operator.getitem, (whole, index), replace(tag, made_by=FuseSwigluEpilogue.name()))
        for index, tag in ((0, tag_of(matmul)), (1, tag_of(gate)))
    )
    redirect(matmul, both)
    redirect(gate, call_before(graph, gate, ATEN.view.default, (gated, list(value_of(gate).shape)), _made(gate)))


def apply_backward(graph: Graph, fusion: Fusion) -> None:
    """Compute a matmul with the backward of the gate after it."""
    matmul, gate, weight = fusion
    whole = call_before(graph, gate, MATMUL_SWIGLU_BACKWARD, (matmul.args[0], weight, *gate.args[1:]), _made(gate))
    for part in redirect_results(graph, gate, whole, {0: 0, 1: 1}):
        shape = list(value_of(gate)[part.args[1]].shape)
        redirect(part, call_before(graph, gate, ATEN.view.default, (part, shape), _made(gate)))


def _made(node: Node) -> Tag:
    return replace(tag_of(node), made_by=FuseSwigluEpilogue.name())


def _is_dense(node: Node) -> bool:
    return bool(value_of(node).is_contiguous())
