"""Run a rank-free graph for all coordinates of a mesh at once, node by node, in one process.

Ranks that provably hold the same value share it, and a value is dropped after its last use: memory is bounded by what
distinct coordinates hold at one node of the step, and the peak is measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from monograph.compat.ops import WAIT_TENSOR
from monograph.graph.signature import InputKind, InputSpec
from monograph.graph.step_graph import StepGraph
from monograph.verify.simulate.calls import prepare_call
from monograph.verify.simulate.collectives import COLLECTIVES, SimulationError, run_collective
from monograph.verify.simulate.coordinates import Coordinates, Partition
from monograph.verify.simulate.precision import widen

Observe = Callable[[Node, "SharedValue"], None]


@dataclass(frozen=True)
class SharedValue:
    """A value of every rank, stored once for each class of ranks that holds the same."""

    part: Partition
    items: Sequence[Any]

    def at(self, rank: int) -> Any:
        """The value that a rank holds."""
        return self.items[self.part.labels[rank]]


BindInput = Callable[[InputSpec], SharedValue]


@dataclass
class Execution:
    """What a run of a graph left behind."""

    results: list[SharedValue | None] = field(default_factory=list)
    """One for each output of the graph, in order."""
    calls: int = 0
    """Ops that were computed."""
    shared: int = 0
    """Ops of ranks that were not, because another rank holds the same."""
    peak_bytes: int = 0
    """The most memory that values had at one node; views count once, with what they are views of."""


class GraphMachine:
    """A graph prepared to run on a mesh, as often as wanted."""

    def __init__(self, graph: StepGraph, coordinates: Coordinates, *, is_wide: bool = True) -> None:
        self.graph, self.coordinates, self.is_wide = graph, coordinates, is_wide
        self.nodes = graph.nodes
        self.specs = dict(zip(graph.placeholders, graph.inputs, strict=True))
        self._kinds = {node: spec.kind for node, spec in self.specs.items()}
        self.calls = {node: prepare_call(node, is_wide=is_wide) for node in self.nodes if node.op == "call_function"}
        last = {operand: node for node in self.nodes for operand in node.all_input_nodes}
        self.ends: dict[Node, list[Node]] = {}
        for operand, node in last.items():
            self.ends.setdefault(node, []).append(operand)

    def run(self, bind: BindInput, observe: Observe | None = None) -> Execution:
        """Execute every node for every class of ranks; `bind` gives the inputs, `observe` sees each node's value."""
        done = Execution()
        values: dict[Node, SharedValue] = {}
        memory = _Memory()
        with torch.no_grad():
            for node in self.nodes:
                if node.op == "output":
                    done.results = [None if node is None else values[node] for node in self.graph.results]
                    break
                try:
                    values[node] = self._compute(node, values, bind)
                except SimulationError:
                    raise
                except Exception as error:
                    error.add_note(f"simulating {node.format_node()}")
                    raise
                count = len(values[node].items)
                done.calls += count
                done.shared += len(self.coordinates.ranks) - count
                memory.add(values[node])
                if observe is not None:
                    observe(node, values[node])
                for operand in [*self.ends.get(node, ()), *([] if node.users else [node])]:
                    memory.drop(values.pop(operand))
        done.peak_bytes = memory.peak
        return done

    def _compute(self, node: Node, values: dict[Node, SharedValue], bind: BindInput) -> SharedValue:
        if node.op == "placeholder":
            return bind(self.specs[node])
        if node.op == "get_attr":
            value: Any = self.graph.module
            for name in str(node.target).split("."):
                value = getattr(value, name)
            return SharedValue(self.coordinates.one, [widen(value) if self.is_wide else value])
        if node.op != "call_function":
            raise SimulationError(
                f"{node.name} is compiled code",
                why="only graphs of ops are simulated",
                do="leave compilation passes off",
            )
        call = self.calls[node]
        operands = [values[operand] for operand in call.operands]
        if node.target is WAIT_TENSOR:
            return operands[0]
        part = self.coordinates.join([operand.part for operand in operands])
        picks = [[operand.items[operand.part.labels[first]] for operand in operands] for first in part.firsts]
        if node.target in COLLECTIVES:
            return SharedValue(
                *run_collective(node.target, part, [call.fill_args(pick) for pick in picks], self.coordinates)
            )
        computed = SharedValue(part, [call(pick) for pick in picks])
        reads_coords = any(self._kinds.get(operand) is InputKind.COORDS for operand in call.operands)
        return self._merge(computed) if reads_coords else computed

    def _merge(self, value: SharedValue) -> SharedValue:
        """A value read from coordinates: ranks that share the one that it reads hold the same."""
        keys = [item.tolist() if isinstance(item, Tensor) else item for item in value.items]
        part = self.coordinates.by_key([str(keys[label]) for label in value.part.labels])
        return SharedValue(part, [value.at(first) for first in part.firsts])


class _Memory:
    """Bytes of all storages that values hold."""

    def __init__(self) -> None:
        self.users: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def add(self, value: SharedValue) -> None:
        for item in value.items:
            for tensor in _tensors(item):
                storage = tensor.untyped_storage()
                key = storage.data_ptr()
                if key not in self.users:
                    self.users[key], self.sizes[key] = 0, storage.nbytes()
                    self.now += self.sizes[key]
                self.users[key] += 1
        self.peak = max(self.peak, self.now)

    def drop(self, value: SharedValue) -> None:
        for item in value.items:
            for tensor in _tensors(item):
                key = tensor.untyped_storage().data_ptr()
                self.users[key] -= 1
                if not self.users[key]:
                    del self.users[key]
                    self.now -= self.sizes.pop(key)


def _tensors(item: Any) -> list[Tensor]:
    if isinstance(item, list | tuple):
        return [entry for entry in item if isinstance(entry, Tensor)]
    return [item] if isinstance(item, Tensor) else []
