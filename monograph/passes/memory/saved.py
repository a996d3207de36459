"""What crosses from forward to backward under a plan: the one question all memory policies ask.

A plan is the set of forward nodes that are kept. Backward reads a kept value as it is; any other it recomputes
from what is kept, so what crosses is where those computations start.
"""

from collections.abc import Collection
from dataclasses import dataclass

from torch.fx import Node

from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import find_storages, is_backward, is_compute, value_of
from monograph.graph.step_graph import StepGraph


@dataclass(frozen=True)
class SavedActivations:
    """What backward needs of forward."""

    kept: tuple[Node, ...]
    """Values it reads as they are, in order."""
    recomputed: tuple[Node, ...]
    """Values it recomputes, in order."""


def find_crossing(graph: StepGraph, kept: Collection[Node]) -> SavedActivations:
    """Walk from backward's arguments to what is kept."""
    read: set[Node] = set()
    again: set[Node] = set()
    todo = [value for node in graph.nodes if is_compute(node) and is_backward(node) for value in node.all_input_nodes]
    while todo:
        value = todo.pop()
        if not is_compute(value) or is_backward(value) or value in read or value in again:
            continue
        if value in kept:
            read.add(value)
        else:
            again.add(value)
            todo += value.all_input_nodes
    order = [node for node in graph.nodes if node in read or node in again]
    return SavedActivations(tuple(n for n in order if n in read), tuple(n for n in order if n in again))


def count_saved_bytes(graph: StepGraph, crossing: SavedActivations) -> int:
    """Bytes that stay alive between forward and backward: each piece of memory once, inputs not at all."""
    roots, sizes = find_storages(graph.module.graph), LikelySizes(graph.module.graph)
    owners = {roots[node] for node in crossing.kept}
    return sum(sizes.bytes(value_of(owner)) for owner in owners if is_compute(owner))
