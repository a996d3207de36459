"""Memory over the schedule: what is alive while each node runs, and who holds the most at the peak.

Inputs (this rank's shards, buffers, the batch) live all the time, results from their making to the end, everything
else until its last reader, through views, has run. What a transfer sends stays until the transfer has been waited
for. Copies in the host's memory, kernels' own workspace, the allocator's rounding and the optimizer's state are not
counted.
"""

import operator
from dataclasses import dataclass

from torch.fx import Graph, Node

from monograph.graph.host_copy import TO_HOST
from monograph.graph.likely_sizes import Sizes
from monograph.graph.query import find_storages, is_launch, value_of
from monograph.graph.step_graph import StepGraph


@dataclass(frozen=True)
class Held:
    """A piece of memory: the node that made it (part `part` of its values, for a list) and its size."""

    node: Node
    part: int
    bytes: int
    first: int
    """The place in the schedule where it is made."""
    last: int
    """The last place that needs it."""


@dataclass(frozen=True)
class Memory:
    """Bytes alive while each node runs, and the peak."""

    live_bytes: list[int]
    """One entry per node, in order."""
    peak_bytes: int
    peak_index: int
    """The node that runs at the peak."""
    held: list[Held]
    """All pieces of memory, in the order they are made."""

    def largest_at_peak(self, count: int) -> list[Held]:
        """The largest pieces alive at the peak."""
        alive = [each for each in self.held if each.first <= self.peak_index <= each.last]
        return sorted(alive, key=lambda each: -each.bytes)[:count]


def find_memory(graph: StepGraph, sizes: Sizes | None = None) -> Memory:
    """The memory a step needs on one rank, node by node."""
    nodes = graph.nodes
    held = find_held(graph.module.graph, sizes or Sizes(graph.module.graph))
    changes = [0] * (len(nodes) + 1)
    for each in held:
        changes[each.first] += each.bytes
        changes[each.last + 1] -= each.bytes
    live, now = [], 0
    for change in changes[:-1]:
        now += change
        live.append(now)
    peak = max(live, default=0)
    return Memory(live, peak, live.index(peak) if live else 0, held)


def find_held(graph: Graph, sizes: Sizes) -> list[Held]:
    """Every piece of memory with the span of its life."""
    owners = find_owners(graph)
    places = {node: place for place, node in enumerate(graph.nodes)}
    end = len(places) - 1
    last: dict[tuple[Node, int], int] = {}
    for node, owned in owners.items():
        needed = max((places[user] for user in node.users), default=places[node])
        needed = max([needed, *(places[wait] for launch in node.users if is_launch(launch) for wait in launch.users)])
        for piece in owned:
            last[piece] = max(last.get(piece, 0), needed)
    found = []
    for (node, part), needed in last.items():
        value = value_of(node)
        size = sizes.bytes(value[part] if isinstance(value, list | tuple) else value)
        if size and node.target is not TO_HOST:
            span = (0, end) if node.op == "placeholder" else (places[node], needed)
            found.append(Held(node, part, size, *span))
    return found


def find_owners(graph: Graph) -> dict[Node, list[tuple[Node, int]]]:
    """For every node the pieces of memory its value lives in, each as (who made it, which of its values)."""
    roots = find_storages(graph)
    owners: dict[Node, list[tuple[Node, int]]] = {}
    for node, root in roots.items():
        if root is not node:
            owners[node] = owners[root]
        elif node.target is operator.getitem and isinstance(node.args[0], Node):
            owners[node] = [owners[node.args[0]][node.args[1]]]  # type: ignore[index]
        else:
            value = value_of(node)
            owners[node] = [(node, part) for part in range(len(value) if isinstance(value, list | tuple) else 1)]
    return owners
