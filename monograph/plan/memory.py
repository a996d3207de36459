"""Where the memory of a step goes on one rank, for a model whose middle blocks were captured once.

What a block holds from forward to backward, its weights and its gradients count for every block that is like it. What
it needs only while it runs counts once.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import torch
from torch.fx import Node

from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.memory import LiveMemory, find_held, find_lasting
from monograph.graph.pieces import find_owners
from monograph.graph.query import is_backward, is_compute, value_of
from monograph.graph.signature import InputKind, InputSpec, OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import find_tag
from monograph.graph.workspace import count_workspace


class MemoryKind(StrEnum):
    """What memory is for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    SAVED = "saved"
    WORKING = "working"


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """Bytes at the peak of a step, by what they are for."""

    parameters: int
    gradients: int
    optimizer: int
    saved: int
    """Activations that wait for backward."""
    working: int
    """Gathered weights, values in use, workspaces of kernels."""
    most_saved: int
    """The most that waits for backward at any time, at the peak or not."""

    @property
    def peak(self) -> int:
        """All of it: what the allocator has handed out."""
        return self.parameters + self.gradients + self.optimizer + self.saved + self.working


class HeldPiece(NamedTuple):
    """A piece of memory of a captured step."""

    live: LiveMemory
    kind: MemoryKind
    unit: str
    """The unit of the model that it belongs to; empty where it is no unit's."""
    is_trained: bool
    """Whether it is a parameter that the optimizer has state for."""
    sum_bytes: int = 0
    """Of a gradient: what the sum over several micro-batches takes, which may be wider than one of them."""


@dataclass(frozen=True)
class StepMemory:
    """All memory of a captured step."""

    pieces: list[HeldPiece]
    workspaces: list[int]
    """What the kernel of each node takes for itself."""
    ends: dict[str, int]
    """Where the backward of each unit ends in the schedule."""


def map_memory(
    graph: StepGraph, sizes: LikelySizes, units: Mapping[str, str], *, reduce_dtype: torch.dtype = torch.float32
) -> StepMemory:
    """The memory of a step; `units` has each parameter's unit."""
    nodes = graph.nodes
    lasting = find_lasting(graph)
    inputs = dict(zip(graph.placeholders, graph.inputs, strict=True))
    gradients = _find_gradient_pieces(graph, reduce_dtype)
    pieces = []
    for live in find_held(graph.module.graph, sizes, lasting):
        spec = inputs.get(live.node)
        kind = MemoryKind.PARAMETERS
        if spec is None and live.node not in lasting:
            kind = _find_kind(live, gradients, nodes)
        is_trained = spec is not None and spec.kind is InputKind.STATE
        widening = gradients.get((live.node, live.part), 0.0) if kind is MemoryKind.GRADIENTS else 0.0
        unit = _find_unit(live, spec, units)
        pieces.append(HeldPiece(live, kind, unit, is_trained, int(widening * live.bytes)))
    return StepMemory(pieces, [count_workspace(node, sizes) for node in nodes], _find_ends(nodes))


def find_memory_parts(
    memory: StepMemory,
    extra: Mapping[str, float],
    *,
    state_ratio: float,
    is_accumulating: bool = False,
    is_recorded: bool = False,
) -> MemoryParts:
    """The peak of the whole model. `extra` has how many more blocks there are like a captured one; the optimizer's
    state is `state_ratio` times the trained parameters."""
    count = len(memory.workspaces)
    live = {kind: _Curve(count) for kind in MemoryKind}
    total, trained = 0.0, 0.0
    for (_, _, size, first, last), kind, unit, is_trained, sum_bytes in memory.pieces:
        more = extra.get(unit, 0.0) if kind is not MemoryKind.WORKING else 0.0
        live[kind].add(first, last, size)
        if more:
            # The other blocks' backward begins when this one's is over: until then they hold what they saved, and from
            # then on, at the end of the step, what they computed.
            start = max(first, memory.ends.get(unit, 0)) if kind is MemoryKind.GRADIENTS else first
            live[kind].add(start, max(start, last), more * size)
        # Recordings keep the gradients of the first micro-batch where a sum is wider than they are.
        kept = size if is_recorded and sum_bytes > size else 0
        total += (1 + more) * (sum_bytes + kept)
        trained += (1 + more) * size if is_trained else 0.0
    curves = {kind: curve.values() for kind, curve in live.items()}
    if is_accumulating:  # the sum over micro-batches waits all the time, beside the gradients that are being added
        curves[MemoryKind.GRADIENTS] = [total] * count
    sums = [sum(together) for together in zip(*curves.values(), memory.workspaces, strict=True)]
    peak = max(range(count), key=sums.__getitem__)
    return MemoryParts(
        parameters=int(curves[MemoryKind.PARAMETERS][peak]),
        gradients=int(curves[MemoryKind.GRADIENTS][peak]),
        optimizer=int(state_ratio * trained),
        saved=int(curves[MemoryKind.SAVED][peak]),
        working=int(curves[MemoryKind.WORKING][peak] + memory.workspaces[peak]),
        most_saved=int(max(curves[MemoryKind.SAVED])),
    )


def find_working(memory: StepMemory) -> list[float]:
    """Bytes that are in use at each node besides weights, gradients and what waits for backward."""
    curve = _Curve(len(memory.workspaces))
    for piece in memory.pieces:
        if piece.kind is MemoryKind.WORKING:
            curve.add(piece.live.first, piece.live.last, piece.live.bytes)
    return [a + b for a, b in zip(curve.values(), memory.workspaces, strict=True)]


@dataclass
class _Curve:
    """Bytes alive at each node."""

    nodes: int
    changes: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.changes = [0.0] * (self.nodes + 1)

    def add(self, first: int, last: int, size: float) -> None:
        self.changes[first] += size
        self.changes[last + 1] -= size

    def values(self) -> list[float]:
        now, found = 0.0, []
        for change in self.changes[:-1]:
            now += change
            found.append(now)
        return found


def _find_gradient_pieces(graph: StepGraph, reduce_dtype: torch.dtype) -> dict[tuple[Node, int], float]:
    """What gradients lie in, and how many times as much a sum of several takes."""
    owners = find_owners(graph.module.graph)
    stored = {spec.name: spec.dtype for spec in graph.inputs if spec.kind is InputKind.STATE}
    found = {}
    for spec, node in zip(graph.outputs, graph.results, strict=True):
        if spec.kind is OutputKind.GRADIENT and node is not None:
            sum_dtype = torch.promote_types(stored[spec.name], reduce_dtype)
            widening = sum_dtype.itemsize / value_of(node).dtype.itemsize
            found.update(dict.fromkeys(owners[node], widening))
    return found


def _find_kind(live: LiveMemory, gradients: Container[tuple[Node, int]], nodes: list[Node]) -> MemoryKind:
    if (live.node, live.part) in gradients:
        return MemoryKind.GRADIENTS
    is_saved = is_compute(live.node) and not is_backward(live.node) and is_backward(nodes[live.last])
    return MemoryKind.SAVED if is_saved else MemoryKind.WORKING


def _find_unit(live: LiveMemory, spec: InputSpec | None, units: Mapping[str, str]) -> str:
    if spec is not None:
        return units.get(spec.name, "")
    tag = find_tag(live.node)
    return tag.unit if tag else ""


def _find_ends(nodes: list[Node]) -> dict[str, int]:
    found: dict[str, int] = {}
    for index, node in enumerate(nodes):
        tag = find_tag(node)
        if tag is not None and tag.unit and is_compute(node) and is_backward(node):
            found[tag.unit] = index
    return found
