"""Where the memory of a step goes on one rank, for a model whose middle blocks were captured once.

What a block holds from forward to backward, its weights and its gradients count for every block that is like it. What
it needs only while it runs counts once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch.fx import Node

from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.memory import LiveMemory, find_held, find_lasting, find_owners
from monograph.graph.query import is_backward, is_compute
from monograph.graph.signature import InputKind, OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import find_tag
from monograph.graph.workspace import count_workspace

_STATE, _GRADIENT, _SAVED, _WORKING = "parameters", "gradients", "saved", "working"


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


@dataclass
class _Kinds:
    """Bytes alive at each node, by kind; `extra` is what the blocks that were not captured add."""

    nodes: int
    live: dict[str, list[float]] = field(default_factory=dict)

    def add(self, kind: str, first: int, last: int, size: float) -> None:
        changes = self.live.setdefault(kind, [0.0] * (self.nodes + 1))
        changes[first] += size
        changes[last + 1] -= size

    def curve(self, kind: str) -> list[float]:
        now, found = 0.0, []
        for change in self.live.get(kind, [0.0] * (self.nodes + 1))[:-1]:
            now += change
            found.append(now)
        return found


def find_memory_parts(
    graph: StepGraph,
    extra: Mapping[int, float],
    blocks: Mapping[str, int | None],
    *,
    state_ratio: float,
    is_accumulating: bool = False,
    in_flight: int = 1,
) -> MemoryParts:
    """The peak of the whole model. `blocks` has each parameter's block; `in_flight` micro-batches wait for backward;
    the optimizer's state is `state_ratio` times the trained parameters."""
    nodes = graph.nodes
    sizes = LikelySizes(graph.module.graph)
    lasting = find_lasting(graph)
    held = find_held(graph.module.graph, sizes, lasting)
    inputs = dict(zip(graph.placeholders, graph.inputs, strict=True))
    ends = _find_ends(nodes)
    gradients = _find_gradient_pieces(graph)
    own, others = _Kinds(len(nodes)), _Kinds(len(nodes))
    totals = dict.fromkeys((_STATE, _GRADIENT), 0.0)
    trained = 0.0
    for piece in held:
        kind = _find_kind(piece, inputs, lasting, gradients, nodes)
        block = _find_block(piece, inputs, blocks)
        more = extra.get(block, 0.0) if block is not None and kind != _WORKING else 0.0
        times = in_flight if kind == _SAVED else 1
        own.add(kind, piece.first, piece.last, times * piece.bytes)
        if more and block is not None:
            # The other blocks' backward begins when this one's is over: until then they hold what they saved, and from
            # then on, at the end of the step, what they computed.
            first = max(piece.first, ends.get(block, 0)) if kind == _GRADIENT else piece.first
            others.add(kind, first, max(first, piece.last), times * more * piece.bytes)
        if kind in totals:
            totals[kind] += (1 + more) * piece.bytes
        if piece.node in inputs and inputs[piece.node].kind is InputKind.STATE:
            trained += (1 + more) * piece.bytes
    work = [count_workspace(node, sizes) for node in nodes]
    names = (_STATE, _GRADIENT, _SAVED, _WORKING)
    curves = {name: [a + b for a, b in zip(own.curve(name), others.curve(name), strict=True)] for name in names}
    if is_accumulating:  # the sum over micro-batches waits all the time, beside the gradients that are being added
        curves[_GRADIENT] = [totals[_GRADIENT]] * len(nodes)
    live = [sum(curves[name][index] for name in names) + work[index] for index in range(len(nodes))]
    peak = max(range(len(nodes)), key=live.__getitem__)
    return MemoryParts(
        parameters=int(curves[_STATE][peak]),
        gradients=int(curves[_GRADIENT][peak]),
        optimizer=int(state_ratio * trained),
        saved=int(curves[_SAVED][peak]),
        working=int(curves[_WORKING][peak] + work[peak]),
        most_saved=int(max(curves[_SAVED])),
    )


def _find_gradient_pieces(graph: StepGraph) -> set[tuple[Node, int]]:
    owners = find_owners(graph.module.graph)
    results = zip(graph.outputs, graph.results, strict=True)
    wanted = [node for spec, node in results if spec.kind is OutputKind.GRADIENT and node is not None]
    return {piece for node in wanted for piece in owners[node]}


def _find_kind(
    piece: LiveMemory,
    inputs: Mapping[Node, object],
    lasting: set[Node],
    gradients: set[tuple[Node, int]],
    nodes: list[Node],
) -> str:
    if piece.node in inputs or piece.node in lasting:
        return _STATE
    if (piece.node, piece.part) in gradients:
        return _GRADIENT
    is_saved = is_compute(piece.node) and not is_backward(piece.node) and is_backward(nodes[piece.last])
    return _SAVED if is_saved else _WORKING


def _find_block(piece: LiveMemory, inputs: Mapping[Node, object], blocks: Mapping[str, int | None]) -> int | None:
    if piece.node in inputs:
        return blocks.get(getattr(inputs[piece.node], "name", ""))
    tag = find_tag(piece.node)
    return tag.block if tag else None


def _find_ends(nodes: list[Node]) -> dict[int, int]:
    """Where the backward of each block ends in the schedule."""
    found: dict[int, int] = {}
    for index, node in enumerate(nodes):
        tag = find_tag(node)
        if tag is not None and tag.block is not None and is_compute(node) and is_backward(node):
            found[tag.block] = index
    return found
