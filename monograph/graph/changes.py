"""What changed between two looks at a graph: whatever did not needs no second check and costs what it did.

Compared by identity, which fx changes with every edit: a node whose arguments, value and tag are the same objects as
before is the same node.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch.fx import Node

from monograph.graph.query import value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, find_tag


class Seen(NamedTuple):
    """What a node was."""

    target: Any
    args: Any
    kwargs: Any
    value: Any
    tag: Tag | None


Look = dict[Node, Seen]
"""Every node in order, with what it was."""


def look_at(graph: StepGraph) -> Look:
    """The graph as it stands."""
    return {node: Seen(node.target, node.args, node.kwargs, value_of(node), find_tag(node)) for node in graph.nodes}


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

    @property
    def is_order(self) -> bool:
        """Whether at most the order is another."""
        return not (self.altered or self.removed)

    @cached_property
    def touched(self) -> frozenset[Node]:
        """What was altered, and whatever reads it."""
        return self.altered.union(*(node.users for node in self.altered))


def find_changes(old: Look, new: Look) -> Changes:
    """What is new, what is gone and what is another."""
    altered, places = [], []
    order = dict(zip(old, range(len(old)), strict=True))
    for node, now in new.items():
        before = old.get(node)
        if before is not None:
            places.append(order[node])
        if before is None or _differs(before, now):
            altered.append(node)
    return Changes(
        added=len(new) - len(places),
        removed=len(old) - len(places),
        moved=count_moved(places),
        altered=frozenset(altered),
    )


def _differs(one: Seen, other: Seen) -> bool:
    if one.args is not other.args or one.value is not other.value or one.target is not other.target:
        return True
    return one.kwargs is not other.kwargs or one.tag is None or not one.tag.is_like(other.tag)


def count_moved(places: Sequence[int]) -> int:
    """The fewest of these one has to move to put them in order."""
    ends: list[int] = []  # ends[n]: where the best increasing run of n + 1 places ends
    for place in places:
        if not ends or place > ends[-1]:
            ends.append(place)
        else:
            ends[bisect.bisect_left(ends, place)] = place
    return len(places) - len(ends)
