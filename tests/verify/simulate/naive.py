"""A captured step run once for every rank, with nothing shared and no partitions: the truth that verdicts are held to.

Values of a healthy graph are kept by node, so that a mutant costs what follows from its change alone.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from monograph.axes import Group
from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, WAIT_TENSOR
from monograph.graph.signature import OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.parallel.mesh import Mesh
from monograph.verify.simulate.calls import prepare_call
from monograph.verify.simulate.rounds import SimulatedRound

Rows = list[Any]
"""One value for each rank."""
FLOOR = 1e-6
"""The part of the largest gradient that smaller ones are measured against."""


class NaiveMesh:
    """A healthy step on every rank of a mesh, and what a mutant of it changes."""

    def __init__(self, graph: StepGraph, planned: SimulatedRound) -> None:
        self.mesh: Mesh = planned.coordinates.mesh
        self.planned = planned
        self.kept: dict[str, Rows] = {}
        self.calls = {node.name: _describe(node) for node in graph.nodes}
        inputs = planned.make_inputs()
        self.bound = {
            node.name: [inputs.bind(spec).at(rank) for rank in self.ranks]
            for node, spec in zip(graph.placeholders, graph.inputs, strict=True)
        }
        self.healthy = self._read(graph, self._run(graph, keeps=True))

    @property
    def ranks(self) -> range:
        return range(self.mesh.world_size)

    def compare(self, mutant: StepGraph) -> float:
        """The largest relative difference that a mutant makes to what ranks are trained with."""
        found = self._read(mutant, self._run(mutant, keeps=False))
        largest = max(_size(rows) for (kind, _), rows in self.healthy.items() if kind is OutputKind.GRADIENT)
        worst = 0.0
        for key, rows in self.healthy.items():
            scale = max(_size(rows), FLOOR * largest if key[0] is OutputKind.GRADIENT else 0.0)
            for ours, wanted in zip(found[key], rows, strict=True):
                if ours.shape != wanted.shape or not bool(torch.isfinite(ours.double()).all()):
                    return float("inf")
                gap = float((ours.double() - wanted.double()).abs().max()) if wanted.numel() else 0.0
                worst = max(worst, gap / scale if scale else (float("inf") if gap else 0.0))
        return worst

    def _run(self, graph: StepGraph, *, keeps: bool) -> dict[Node, Rows]:
        values: dict[Node, Rows] = {}
        changed: set[Node] = set()
        for node in graph.nodes:
            if node.op == "output":
                break
            is_same = self.calls.get(node.name) == _describe(node) and changed.isdisjoint(node.all_input_nodes)
            if is_same and node.name in self.kept:
                values[node] = self.kept[node.name]
                continue
            changed.add(node)
            values[node] = self._compute(node, values)
            if keeps:
                self.kept[node.name] = values[node]
        return values

    def _compute(self, node: Node, values: Mapping[Node, Rows]) -> Rows:
        if node.op == "placeholder":
            return self.bound[node.name]
        assert node.op == "call_function", node.op
        call = prepare_call(node, is_wide=True)
        given = [[values[operand][rank] for operand in call.operands] for rank in self.ranks]
        if node.target is WAIT_TENSOR:
            return values[call.operands[0]]
        if node.target not in _EXCHANGES:
            return [call(operands) for operands in given]
        arguments = [call.fill_args(operands) for operands in given]
        group = Group(arguments[0][-1])
        results = []
        for rank in self.ranks:
            members = self.mesh.members(group, rank)
            results.append(_EXCHANGES[node.target]([arguments[each] for each in members], list(members).index(rank)))
        return results

    def _read(self, graph: StepGraph, values: Mapping[Node, Rows]) -> dict[tuple[OutputKind, str], list[Tensor]]:
        """What counts: valid parts of gradients, losses summed over the data, metrics summed over all ranks."""
        table, found = self.planned.source.table, {}
        for spec, node in zip(graph.outputs, graph.results, strict=True):
            if node is None:
                continue
            rows = values[node]
            if spec.kind is OutputKind.GRADIENT:
                rows = [table[spec.name].valid_part(rows[rank], rank) for rank in self.ranks]
            else:
                group = Group.BATCH if spec.kind is OutputKind.LOSS else Group.WORLD
                rows = [sum(rows[each].double() for each in self.mesh.members(group, rank)) for rank in self.ranks]
            found[spec.kind, spec.name] = rows
        return found


def _describe(node: Node) -> str:
    return f"{node.op} {node.target} {node.args} {node.kwargs}"


def _size(rows: Rows) -> float:
    return max(float(value.double().abs().max()) if value.numel() else 0.0 for value in rows)


def _gather(given: list[Any], place: int) -> Tensor:
    assert given[0][1] == len(given)
    return torch.cat([each[0] for each in given])


def _reduce(given: list[Any], place: int) -> Tensor:
    stacked = torch.stack([each[0] for each in given])
    return {"sum": lambda: stacked.sum(0), "max": lambda: stacked.amax(0), "min": lambda: stacked.amin(0)}[
        given[0][1]
    ]()


def _scatter(given: list[Any], place: int) -> Tensor:
    assert given[0][2] == len(given) and given[0][0].shape[0] % len(given) == 0
    return _reduce(given, place).chunk(len(given))[place]


def _deal(given: list[Any], place: int) -> Tensor:
    rows = []
    for sender, (value, received, sent, _) in enumerate(given):
        assert sum(sent) == value.shape[0] and len(sent) == len(received) == len(given)
        assert given[place][1][sender] == sent[place]
        rows.append(value.split(list(sent))[place])
    return torch.cat(rows)


_EXCHANGES: Mapping[Any, Callable[[list[Any], int], Tensor]] = {
    ALL_GATHER: _gather,
    ALL_REDUCE: _reduce,
    REDUCE_SCATTER: _scatter,
    ALL_TO_ALL: _deal,
}
