"""Memory over the schedule: what is alive while each node runs, and who holds the most at the peak.

Inputs (this rank's shards, buffers, the batch) and kept weights live all the time, results from their making to the
end, everything else until its last reader, through views, has run. What a collective sends stays until it has been
waited for. What a kernel takes for itself counts while it runs (workspace.py). Copies in the host's memory, the
allocator's rounding and the optimizer's state are not counted.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch.fx import Graph, Node

from monograph.graph.cast_weights import CachedCast, find_cached_casts, find_joined, is_cached_cast, is_cached_float8
from monograph.graph.host_copy import TO_HOST
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.pieces import Piece, find_owners
from monograph.graph.query import is_launch
from monograph.graph.step_graph import StepGraph
from monograph.graph.workspace import count_workspace


class KnowsBytes(Protocol):
    """Computes the bytes of values."""

    def bytes_of(self, node: Node, part: int) -> int:
        """Bytes of one of a node's values."""


class LiveMemory(NamedTuple):
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
    held: list[LiveMemory]
    """All pieces of memory, in the order they are made."""

    def largest_at_peak(self, count: int) -> list[LiveMemory]:
        """The largest pieces alive at the peak."""
        alive = [each for each in self.held if each.first <= self.peak_index <= each.last]
        return sorted(alive, key=lambda each: -each.bytes)[:count]


def find_memory(graph: StepGraph, sizes: LikelySizes | None = None) -> Memory:
    """The memory a step needs on one rank, node by node."""
    nodes = graph.nodes
    sizes = sizes or LikelySizes(graph.module.graph)
    held = find_held(graph.module.graph, sizes, find_lasting(graph))
    changes = [0] * (len(nodes) + 1)
    for each in held:
        changes[each.first] += each.bytes
        changes[each.last + 1] -= each.bytes
    live, now = [], 0
    for node, change in zip(nodes, changes, strict=False):
        now += change
        live.append(now + count_workspace(node, sizes))
    peak = max(live, default=0)
    return Memory(live, peak, live.index(peak) if live else 0, held)


def find_lasting(graph: StepGraph) -> set[Node]:
    """Casts of weights that are kept from one update to the next, each set of weights once; no joined parameters."""
    found: dict[CachedCast, Node] = {}
    joined = find_joined(graph)
    for node, kept in find_cached_casts(graph):
        if kept not in joined:
            found.setdefault(kept, node)
    return {*found.values(), *(node for node in graph.nodes if is_cached_float8(node))}


def find_held(graph: Graph, sizes: KnowsBytes, lasting: Collection[Node] = ()) -> list[LiveMemory]:
    """Every piece of memory with the span of its life; of what is computed once an update, only `lasting` has any."""
    owners = find_owners(graph)
    last: dict[Piece, int] = {}
    sent: dict[Node, list[Node]] = {}
    indices: dict[Node, int] = {}
    for place, node in enumerate(graph.nodes):
        indices[node] = place
        read = node.all_input_nodes
        for each in (node, *read):
            for piece in owners[each]:
                last[piece] = place
            if each in sent:
                last |= {piece: place for source in sent[each] for piece in owners[source]}
        if is_launch(node):
            sent[node] = read
    end = len(indices) - 1
    found = []
    for (node, part), needed in last.items():
        size = sizes.bytes_of(node, part)
        if size and node.target is not TO_HOST and not (is_cached_cast(node) and node not in lasting):
            span = (0, end) if node.op == "placeholder" or node in lasting else (indices[node], needed)
            found.append(LiveMemory(node, part, size, *span))
    return found
