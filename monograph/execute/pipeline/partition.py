"""Partition of a captured stage: its forward, its backward, and backward as input gradient and weight gradients.

What one part computes and a later one reads is a live value of its micro-batch. Plans only; the
programs are built in stage_program.py.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torch.fx import Node

from monograph.graph.cast_weights import find_cached_casts, is_cached_cast
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import find_storages, is_backward, is_compute, value_of
from monograph.graph.signature import OutputKind
from monograph.graph.step_graph import StepGraph


@dataclass(frozen=True)
class StagePart:
    """Nodes that run as one program, in order."""

    nodes: tuple[Node, ...]
    reads: frozenset[Node]
    """What it takes from earlier parts."""
    keeps: frozenset[Node]
    """What it leaves for later parts."""
    last_reads: frozenset[Node]
    """Of what it reads: what no later part needs."""


@dataclass(frozen=True)
class StageParts:
    """The parts of a stage, for schedules with whole backwards and for those that split them."""

    forward: StagePart
    backward: StagePart
    input_grad: StagePart
    weight_grad: StagePart


def partition(graph: StepGraph) -> StageParts:
    """Forward by direction; the input gradient is all of backward that the gradient of the carry depends on."""
    nodes = [node for node in graph.nodes if is_compute(node) and not is_cached_cast(node)]
    forward = [node for node in nodes if not is_backward(node)]
    backward = [node for node in nodes if is_backward(node)]
    needed = find_ancestors(find_results(graph, OutputKind.CARRY_GRADIENT), set(backward))
    first = [node for node in backward if node in needed]
    rest = [node for node in backward if node not in needed]
    whole = _plan_parts([forward, backward])
    split = _plan_parts([forward, first, rest])
    return StageParts(whole[0], whole[1], split[1], split[2])


def _plan_parts(parts: Sequence[Sequence[Node]]) -> list[StagePart]:
    """What goes from part to part, when they run in this order."""
    reads = [frozenset(find_inputs(nodes)) for nodes in parts]
    found = []
    for index, nodes in enumerate(parts):
        later = frozenset().union(*reads[index + 1 :])
        found.append(
            StagePart(
                nodes=tuple(nodes),
                reads=reads[index],
                keeps=later & frozenset(nodes),
                last_reads=reads[index] - later,
            )
        )
    return found


def find_inputs(nodes: Sequence[Node]) -> set[Node]:
    """The computed values that nodes read and do not make."""
    inside = set(nodes)
    read = {each for node in nodes for each in node.all_input_nodes}
    return {each for each in read - inside if is_compute(each) and not is_cached_cast(each)}


def find_results(graph: StepGraph, kind: OutputKind) -> list[Node]:
    """The outputs of one kind."""
    pairs = zip(graph.outputs, graph.results, strict=True)
    return [node for spec, node in pairs if spec.kind is kind and node is not None]


def find_ancestors(ends: Iterable[Node], within: Collection[Node]) -> set[Node]:
    """The ends, and all within a set that they depend on."""
    found: set[Node] = set()
    todo = [node for node in ends if node in within]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [each for each in node.all_input_nodes if each in within]
    return found


def count_kept_bytes(graph: StepGraph, kept: Iterable[Node]) -> int:
    """Bytes that stay alive between two parts: each piece of memory once; inputs and cached casts not at all."""
    roots, sizes = find_storages(graph.module.graph), LikelySizes(graph.module.graph)
    lasting = {node for node, _ in find_cached_casts(graph)}
    owners = {roots[node] for node in kept}
    return sum(sizes.bytes(value_of(owner)) for owner in owners if is_compute(owner) and owner not in lasting)
