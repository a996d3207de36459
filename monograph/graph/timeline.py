"""When things would happen: compute in order on one stream, collectives on one stream per group.

A collective starts when it is launched and its group's stream is free; a wait holds compute until the collective has
ended. Exposed time is what compute spends waiting. Kernel launches and copies to the host cost nothing here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch.fx import Graph, Node

from monograph.graph.query import group_of, is_launch, is_wait


class Span(NamedTuple):
    """Something that takes time."""

    node: Node
    lane: str
    """`compute`, or the group whose ranks talk."""
    start_seconds: float
    end_seconds: float
    exposed_seconds: float = 0.0
    """Of a collective: how long compute waits for it."""


@dataclass(frozen=True)
class Timeline:
    """The spans of one step, by start."""

    spans: list[Span]
    total_seconds: float
    exposed_seconds: float
    communication_seconds: float


def find_timeline(graph: Graph, seconds: Mapping[Node, float]) -> Timeline:
    """Play the schedule through; `seconds` says how long every node takes, collectives included."""
    now, exposed, communication = 0.0, 0.0, 0.0
    free_at: dict[str, float] = {}
    running: dict[Node, tuple[float, float]] = {}
    waited: dict[Node, float] = {}
    spans: list[Span] = []
    for node in graph.nodes:
        takes = seconds.get(node, 0.0)
        if is_launch(node):
            start = max(now, free_at.get(group_of(node), 0.0))
            running[node] = (start, start + takes)
            free_at[group_of(node)] = start + takes
            communication += takes
        elif is_wait(node) and node.args[0] in running:
            blocked = max(0.0, running[node.args[0]][1] - now)
            waited[node.args[0]] = blocked
            exposed += blocked
            now += blocked
        elif takes:
            spans.append(Span(node, "compute", now, now + takes))
            now += takes
    spans += [Span(node, group_of(node), *times, waited.get(node, 0.0)) for node, times in running.items()]
    total = max([now, *free_at.values()])
    return Timeline(sorted(spans, key=lambda span: span.start_seconds), total, exposed, communication)
