"""What each unit of a captured step costs: pipeline stages of any number of units are sums of these."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch.fx import Node

from monograph.execute.pipeline.partition import find_ancestors
from monograph.graph.host_copy import TO_HOST
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.pieces import Piece, find_owners
from monograph.graph.query import group_of, is_backward, is_compute, is_launch, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import find_tag
from monograph.graph.timeline import Timeline
from monograph.machine.device import Machine
from monograph.plan.memory import MemoryKind, StepMemory, find_working

HOST = "host copies"
"""What compute waits for where saved activations come back late, in the place of a group."""


@dataclass(kw_only=True)
class UnitCost:
    """One unit, or several together, for one micro-batch on one rank; seconds include waiting for collectives."""

    forward_seconds: float = 0.0
    input_grad_seconds: float = 0.0
    """Of what the unit before it waits for."""
    weight_grad_seconds: float = 0.0
    waits: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Of these seconds, those in which compute waits, by group."""
    collective_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Length of the collectives of each group, whether or not compute waits for them."""
    parameter_bytes: float = 0.0
    trained_bytes: float = 0.0
    gradient_bytes: float = 0.0
    saved_bytes: float = 0.0
    """What forward keeps for backward."""
    saved_for_weights_bytes: float = 0.0
    """What is kept for the weight gradients once the input gradient is there."""
    offloaded_bytes: float = 0.0
    """What waits for backward in the host's memory."""
    work_bytes: float = 0.0
    """The most that is in use at once besides what is kept."""

    @property
    def backward_seconds(self) -> float:
        """Both gradients."""
        return self.input_grad_seconds + self.weight_grad_seconds

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_seconds + self.backward_seconds

    @property
    def compute_seconds(self) -> float:
        """Without waiting."""
        return self.seconds - sum(self.waits.values())


def add_units(units: Iterable[tuple[UnitCost, float]]) -> UnitCost:
    """Several units together, each so many times; they run one after the other, so that memory in use is shared."""
    total = UnitCost()
    for unit, times in units:
        for name in _ADDED:
            setattr(total, name, getattr(total, name) + times * getattr(unit, name))
        for sums, added in ((total.waits, unit.waits), (total.collective_seconds, unit.collective_seconds)):
            for group, seconds in added.items():
                sums[group] += times * seconds
        total.work_bytes = max(total.work_bytes, unit.work_bytes)
    return total


_ADDED = (
    *("forward_seconds", "input_grad_seconds", "weight_grad_seconds"),
    *("parameter_bytes", "trained_bytes", "gradient_bytes"),
    *("saved_bytes", "saved_for_weights_bytes", "offloaded_bytes"),
)


def wait_for_host(cost: UnitCost, machine: Machine) -> UnitCost:
    """The same with the time that copies to the host take longer than forward, and those back longer than backward."""
    copying = machine.host_copy_seconds(cost.offloaded_bytes)
    out = max(0.0, copying - cost.forward_seconds)
    back = max(0.0, copying - cost.backward_seconds)
    if not out and not back:
        return cost
    return replace(
        cost,
        forward_seconds=cost.forward_seconds + out,
        input_grad_seconds=cost.input_grad_seconds + back,
        waits={**cost.waits, HOST: out + back},
        saved_bytes=cost.saved_bytes + out * machine.host_gb_per_second * 1e9,  # what is not copied in time
    )


def find_unit_costs(
    graph: StepGraph, sizes: LikelySizes, timeline: Timeline, memory: StepMemory, units: list[str]
) -> dict[str, UnitCost]:
    """The cost of every captured unit, in order; what belongs to none counts with the last one, which has the loss."""
    found = {unit: UnitCost() for unit in units}
    owners = _find_unit_of_nodes(graph, units)
    backward = {node for node in graph.nodes if is_compute(node) and is_backward(node)}
    first = [node for node in backward if owners[node] == units[0]]
    for_input = find_ancestors(first, backward) - set(first)
    for span in timeline.spans:
        cost = found[owners[span.node]]
        seconds = span.end_seconds - span.start_seconds
        if is_launch(span.node):
            cost.collective_seconds[group_of(span.node)] += seconds
            seconds = span.exposed_seconds
            if seconds:
                cost.waits[group_of(span.node)] += seconds
        if span.node not in backward:
            cost.forward_seconds += seconds
        elif span.node in for_input:
            cost.input_grad_seconds += seconds
        else:
            cost.weight_grad_seconds += seconds
    _add_memory(found, memory, units)
    for node in graph.nodes:
        if node.target is TO_HOST:
            found[owners[node]].offloaded_bytes += sizes.bytes(value_of(node))
    for unit, size in _find_saved_for_weights(graph, sizes, memory, owners, backward - for_input).items():
        found[unit].saved_for_weights_bytes += size
    for node, size in zip(graph.nodes, find_working(memory), strict=True):
        found[owners[node]].work_bytes = max(found[owners[node]].work_bytes, size)
    return found


def _find_unit_of_nodes(graph: StepGraph, units: list[str]) -> dict[Node, str]:
    tags = {node: find_tag(node) for node in graph.nodes}
    return {node: tag.unit if tag is not None and tag.unit in units else units[-1] for node, tag in tags.items()}


def _add_memory(found: Mapping[str, UnitCost], memory: StepMemory, units: list[str]) -> None:
    for piece in memory.pieces:
        cost = found.get(piece.unit) or found[units[-1]]
        if piece.kind is MemoryKind.PARAMETERS:
            cost.parameter_bytes += piece.live.bytes
        elif piece.kind is MemoryKind.GRADIENTS:
            cost.gradient_bytes += piece.sum_bytes  # a pipeline has several micro-batches
        elif piece.kind is MemoryKind.SAVED:
            cost.saved_bytes += piece.live.bytes
        if piece.is_trained:
            cost.trained_bytes += piece.live.bytes


def _find_saved_for_weights(
    graph: StepGraph, sizes: LikelySizes, memory: StepMemory, units: Mapping[Node, str], for_weights: set[Node]
) -> dict[str, float]:
    """Bytes by unit that weight gradients read of what was computed before them."""
    pieces = find_owners(graph.module.graph)
    held = {(piece.live.node, piece.live.part): piece for piece in memory.pieces}
    read: dict[Piece, str] = {}
    for node in graph.nodes:
        if node in for_weights:
            read |= {piece: units[node] for each in node.all_input_nodes for piece in pieces[each]}
    found: dict[str, float] = defaultdict(float)
    for piece, unit in read.items():
        known = held.get(piece)
        is_made_here = piece[0] in for_weights
        if known is not None and not is_made_here and known.kind is not MemoryKind.PARAMETERS:
            found[unit] += known.live.bytes
    return found
