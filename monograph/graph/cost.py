"""What a step costs, estimated from its graph alone: operations, bytes, memory, time on the links.

Every node is bound by its operations or by the memory it touches, after its kernel has started; a collective by its
latency and by the bytes one rank sends: (n - 1)/n of the whole value to all_gather, reduce_scatter or all_to_all it
among n ranks, and twice that to all_reduce it (rings). Every group has links of its own. Rates are those of
`facts.machine`, see `monograph/machine/device.py`.
The numbers compare one graph with another; they do not promise a speed.
"""

import operator
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor
from torch.fx import Graph, Node

from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from monograph.graph.attention_scores import find_scores, is_by_cudnn
from monograph.graph.facts import Facts
from monograph.graph.flops import count_flops
from monograph.graph.host_copy import FROM_HOST, TO_HOST
from monograph.graph.layouts import find_symbols
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.memory import find_memory
from monograph.graph.query import alias_of, group_of, group_size_of, is_compute, is_launch, name_of, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.timeline import find_timeline
from monograph.machine.device import Machine

_FREE = (TO_HOST, FROM_HOST, operator.getitem)
"""Copies run on streams of their own, beside compute; taking a value out of a list touches nothing."""
_GROUPED = (
    "_grouped_mm",
    "grouped_matmul",
    "grouped_matmul_weight_grad",
    "float8_grouped_matmul",
    "expert_matmul",
    "expert_swiglu",
    "expert_matmul_sum",
)
_LOOKUPS = ("embedding", "index", "gather", "index_select")
"""Ops that read only the rows they return, however large the table is."""
_ROW_SUMS = ("add_embedding_rows",)
"""Ops that read and write only the rows of a table that they add to, where they are given them."""

_OWN_ATTENTION = 1.4
"""What our attention kernels, and FlexAttention, take of the time of cuDNN's for the same scores: on an H200 1.3 to 1.6
(benchmarks/results/2026-11-18-attention-h200.md), and rates of attention are cuDNN's."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A step's cost on one rank."""

    nodes: int
    flops: int
    collectives: int
    """Collectives that are launched."""
    moved_bytes: int
    """Bytes this rank sends."""
    peak_bytes: int
    communication_seconds: float
    """The length of all collectives, whether or not compute waits for them."""
    exposed_seconds: float
    """How long compute waits for collectives."""


class NodeCost(NamedTuple):
    """What one node does."""

    flops: int = 0
    moved_bytes: int | None = None
    """None for whatever is no collective."""
    seconds: float = 0.0


@dataclass(frozen=True)
class NodeCosts:
    """What each node does, by node; nodes that do nothing are left out."""

    flops: dict[Node, int] = field(default_factory=dict)
    moved_bytes: dict[Node, int] = field(default_factory=dict)
    seconds: dict[Node, float] = field(default_factory=dict)


class CostMeter:
    """Measures one graph again and again: what a node costs is worked out again only when the node was touched."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._known: dict[Node, NodeCost] = {}
        self._bytes: dict[Node, list[int]] = {}

    def measure(self, graph: StepGraph, touched: Collection[Node] = ()) -> Cost:
        """Estimate a step's cost; linear in the number of nodes. `touched` has all that changed since the last time."""
        for node in touched:
            self._known.pop(node, None)
            self._bytes.pop(node, None)
        inside = graph.module.graph
        sizes = LikelySizes(inside, self._bytes)
        costs = self.find_node_costs(inside, sizes)
        timeline = find_timeline(inside, costs.seconds)
        return Cost(
            nodes=len(graph.nodes),
            flops=sum(costs.flops.values()),
            collectives=len(costs.moved_bytes),
            moved_bytes=sum(costs.moved_bytes.values()),
            peak_bytes=find_memory(graph, sizes).peak_bytes,
            communication_seconds=timeline.communication_seconds,
            exposed_seconds=timeline.exposed_seconds,
        )

    def find_node_costs(self, graph: Graph, sizes: LikelySizes) -> NodeCosts:
        """Operations, bytes and seconds of every node."""
        costs = NodeCosts()
        for node in graph.nodes:
            found = self._known.get(node)
            if found is None:
                found = find_node_cost(node, sizes, self.facts)
                if not any(find_symbols(value_of(each)) for each in (node, *node.all_input_nodes)):
                    self._known[node] = found  # guesses of unknown sizes change with the graph
            flops, moved, seconds = found
            if flops:
                costs.flops[node] = flops
            if moved is not None:
                costs.moved_bytes[node] = moved
            if seconds:
                costs.seconds[node] = seconds
        return costs


def measure(graph: StepGraph, facts: Facts) -> Cost:
    """Estimate a step's cost once."""
    return CostMeter(facts).measure(graph)


def find_node_costs(graph: Graph, sizes: LikelySizes, facts: Facts) -> NodeCosts:
    """Operations, bytes and seconds of every node."""
    return CostMeter(facts).find_node_costs(graph, sizes)


def find_node_cost(node: Node, sizes: LikelySizes, facts: Facts) -> NodeCost:
    """Operations, bytes and seconds of one node."""
    machine = facts.machine
    if is_launch(node):
        ranks = count_ranks(node, facts)
        moved = count_sent(node, sizes, ranks)
        span = facts.group_spans.get(group_of(node), ranks)
        is_direct, is_ring = node.target is ALL_TO_ALL, node.target in (ALL_GATHER, REDUCE_SCATTER)
        seconds = machine.collective_seconds(moved, span, ranks=ranks, is_all_to_all=is_direct, is_ring=is_ring)
        return NodeCost(0, moved, seconds)
    if not is_compute(node) or alias_of(node) is not None or node.target in _FREE:
        return NodeCost()
    flops, touched = count_flops(node, sizes), count_touched(node, sizes)
    if not flops and not touched:
        return NodeCost()
    computing = find_compute_seconds(node, sizes, machine, flops) if flops else 0.0
    return NodeCost(flops, None, machine.kernel_seconds + max(computing, machine.memory_seconds(touched)))


def find_compute_seconds(node: Node, sizes: LikelySizes, machine: Machine, flops: int) -> float:
    """How long the operations of a node take; attention leaves out the scores that its mask does."""
    dtype, name = find_matmul_dtype(node), name_of(node)
    scores = find_scores(node, sizes)
    if scores is None:
        return machine.matmul_seconds(flops, dtype, is_grouped=name in _GROUPED)
    seconds = machine.attention_seconds(flops * scores.seen_share, dtype, scores.head_dim)
    return seconds if is_by_cudnn(node) or machine.device == "cpu" else _OWN_ATTENTION * seconds


def find_matmul_dtype(node: Node) -> str:
    """The dtype that a node multiplies in, by torch's name: that of the first tensor it reads."""
    values = (value_of(each) for each in node.all_input_nodes)
    return next((str(value.dtype).removeprefix("torch.") for value in values if isinstance(value, Tensor)), "float32")


def count_ranks(launch: Node, facts: Facts) -> int:
    """Ranks in a collective's group."""
    return group_size_of(launch) or facts.group_sizes.get(group_of(launch), 1)


def count_sent(launch: Node, sizes: LikelySizes, ranks: int) -> int:
    """Bytes one of the ranks sends; none when it is alone in its group."""
    whole = launch if launch.target is ALL_GATHER else launch.args[0]
    times = 2 if launch.target is ALL_REDUCE else 1
    return times * sizes.bytes(value_of(whole)) * (ranks - 1) // ranks  # type: ignore[arg-type]


def count_touched(node: Node, sizes: LikelySizes) -> int:
    """Bytes a node reads and writes in the device's memory."""
    value = value_of(node)
    if not isinstance(value, (Tensor, list, tuple)):
        return 0
    written = sizes.bytes(value)
    if name_of(node) in _LOOKUPS:
        rest = [each for each in node.all_input_nodes if each is not node.args[0]]
        return 2 * written + sum(sizes.bytes(value_of(each)) for each in rest)
    if name_of(node) in _ROW_SUMS:
        return 3 * sizes.bytes(value_of(node.args[1]))  # type: ignore[arg-type]
    return written + sum(sizes.bytes(value_of(each)) for each in node.all_input_nodes)
