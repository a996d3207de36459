"""The difference between two snapshots of a graph: only changed nodes are checked and costed again.

Compared by identity, which fx changes with every edit: a node whose arguments, value and tag are the same objects as
before is the same node.
"""

import bisect
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch.fx import GraphModule, Node

from monograph.graph.query import value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, find_tag


class NodeSnapshot(NamedTuple):
    """What a node was."""

    op: str
    target: Any
    args: Any
    kwargs: Any
    value: Any
    tag: Tag | None


@dataclass(frozen=True)
class Snapshot:
    """A graph as it stood."""

    nodes: dict[Node, NodeSnapshot]
    """In order."""
    frame: tuple[Any, ...]
    """Whatever of a graph is not in its nodes: names of inputs and outputs, promises, what ops and regions run."""

    def has_frame_of(self, other: "Snapshot") -> bool:
        """Whether all that is the same."""
        return len(self.frame) == len(other.frame) and all(map(operator.is_, self.frame, other.frame))


def take_snapshot(graph: StepGraph) -> Snapshot:
    """The graph as it stands."""
    nodes = {
        node: NodeSnapshot(node.op, node.target, node.args, node.kwargs, value_of(node), find_tag(node))
        for node in graph.nodes
    }
    return Snapshot(nodes, (graph.inputs, graph.outputs, graph.properties, *snapshot_submodules(graph)))


def snapshot_submodules(graph: StepGraph) -> Iterator[Any]:
    """The modules that nodes name, and the nodes of those that are graphs."""
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            held = getattr(graph.module, str(node.target), None)
            yield held
            if isinstance(held, GraphModule):
                for inner in held.graph.nodes:
                    yield from (inner, inner.target, inner.args)


@dataclass(frozen=True)
class Changes:
    """The difference between two looks."""

    added: int
    removed: int
    moved: int
    """The fewest nodes one has to move to get from the old order of those that stayed to the new one."""
    altered: frozenset[Node]
    """Nodes that are new, do something else, or come from somewhere else. What passes plan to do with a node, which
    its tag says too, is no part of what it is."""

    @property
    def is_nothing(self) -> bool:
        """Whether the graph is the same."""
        return not (self.altered or self.removed or self.moved)

    @cached_property
    def touched(self) -> frozenset[Node]:
        """What was altered, and whatever reads it."""
        return self.altered.union(*(node.users for node in self.altered))


def find_changes(old: Snapshot, new: Snapshot) -> Changes:
    """The nodes that were added, removed, moved or altered; all nodes when something besides nodes changed."""
    altered, indices = [], []
    order = dict(zip(old.nodes, range(len(old.nodes)), strict=True))
    is_same = new.has_frame_of(old)
    for node, now in new.nodes.items():
        before = old.nodes.get(node)
        if before is not None:
            indices.append(order[node])
        if before is None or not is_same or _differs(before, now):
            altered.append(node)
    return Changes(
        added=len(new.nodes) - len(indices),
        removed=len(old.nodes) - len(indices),
        moved=count_moved(indices),
        altered=frozenset(altered),
    )


def _differs(one: NodeSnapshot, other: NodeSnapshot) -> bool:
    if one.args is not other.args or one.value is not other.value or one.target is not other.target:
        return True
    if one.kwargs is not other.kwargs or one.op != other.op:
        return True
    return one.tag is None or not one.tag.is_like(other.tag)


def count_moved(indices: Sequence[int]) -> int:
    """The fewest of these one has to move to put them in order."""
    ends: list[int] = []  # ends[n]: where the best increasing run of n + 1 places ends
    for index in indices:
        if not ends or index > ends[-1]:
            ends.append(index)
        else:
            ends[bisect.bisect_left(ends, index)] = index
    return len(indices) - len(ends)
