"""Simulate one update of a run on its whole mesh, in one process, and compare it with one device."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from monograph.capture.capture import capture
from monograph.capture.source import StepSource
from monograph.execute.base import StepSettings
from monograph.execute.facts import make_facts
from monograph.graph.step_graph import StepGraph
from monograph.parallel.groups import Groups, fake_groups
from monograph.parallel.mesh import Mesh
from monograph.passes.runner import PassRecord, build_passes, run_passes
from monograph.run import build_source, make_example
from monograph.train.config import TrainerConfig
from monograph.verify.run import in_fp32, on_one_device, without_float8
from monograph.verify.simulate.coordinates import Coordinates
from monograph.verify.simulate.execute import Execution, GraphMachine
from monograph.verify.simulate.inputs import MeshInputs
from monograph.verify.simulate.one_device import Expected, OneDevice
from monograph.verify.simulate.outcome import Comparison, compare_outputs
from monograph.verify.simulate.start import MAX_BATCHES, draw_batches, share_batches
from monograph.verify.simulate.twin import make_twin

CAPTURED = "captured"
"""The name of a graph before any pass."""


@dataclass(frozen=True, kw_only=True)
class SimulatedGraph:
    """One graph of the step on all coordinates."""

    after: str
    """The pass that made it, or CAPTURED."""
    nodes: int
    execution: Execution
    comparison: Comparison
    seconds: float


@dataclass(kw_only=True)
class Simulation:
    """What was simulated, and what came of it."""

    config: TrainerConfig
    """The twin."""
    mesh: Mesh
    graphs: list[SimulatedGraph] = field(default_factory=list)
    different_batches: int = 0
    """Micro-batches of a round that are not the same."""
    seconds: float = 0.0

    @property
    def is_equal(self) -> bool:
        """Whether every output of every graph is what one device computes."""
        return not any(graph.comparison.wrong for graph in self.graphs)

    @property
    def worst(self) -> float:
        """The largest relative difference."""
        return max((graph.comparison.worst for graph in self.graphs), default=0.0)

    @property
    def peak_bytes(self) -> int:
        """The most memory that values of one graph had."""
        return max((graph.execution.peak_bytes for graph in self.graphs), default=0)


@dataclass(frozen=True, kw_only=True)
class SimulatedRound:
    """One round of micro-batches on every rank, ready to run graphs on."""

    source: StepSource
    coordinates: Coordinates
    device: OneDevice
    drawn: Sequence[dict[str, Tensor]]
    dealt: Sequence[int]
    expected: Expected

    def check(self, graph: StepGraph, after: str) -> SimulatedGraph:
        """Run a graph on all coordinates and compare its outputs."""
        start = time.perf_counter()
        inputs = MeshInputs(self.source, self.coordinates, self.device, self.drawn, self.dealt, self.expected.scalars)
        execution = GraphMachine(graph, self.coordinates).run(inputs.bind)
        comparison = compare_outputs(
            graph.outputs, execution.results, self.expected, self.source.table, self.coordinates
        )
        execution.results = []
        return SimulatedGraph(
            after=after,
            nodes=len(graph.nodes),
            execution=execution,
            comparison=comparison,
            seconds=time.perf_counter() - start,
        )


def plan_round(config: TrainerConfig, source: StepSource, coordinates: Coordinates, *, seed: int = 0) -> SimulatedRound:
    """Random weights and micro-batches for a source captured from `config`, and what one device makes of them."""
    device = OneDevice(on_one_device(in_fp32(config)), seed=seed)
    dealt = share_batches(coordinates.mesh.data_parts, seed)
    drawn = draw_batches(config, device.model, min(len(dealt), MAX_BATCHES), seed)
    return SimulatedRound(
        source=source,
        coordinates=coordinates,
        device=device,
        drawn=drawn,
        dealt=dealt,
        expected=device.run(drawn, dealt),
    )


def simulate(config: TrainerConfig, mesh: Mesh, *, every_pass: bool = False, seed: int = 0) -> Simulation:
    """One update of the run's small twin: the captured graph and the one after all passes, or after each of them."""
    start = time.perf_counter()
    twin = make_twin(without_float8(config), mesh)
    found = Simulation(config=twin, mesh=mesh)
    with fake_groups(mesh, 0, torch.device("cpu")) as groups:
        source, settings = build_source(twin, groups)
        graph = capture(source, make_example(twin, source))
        coordinates = Coordinates(mesh)
        planned = plan_round(twin, source, coordinates, seed=seed)
        found.different_batches = len(planned.drawn)
        found.graphs.append(planned.check(graph, CAPTURED))
        if found.is_equal:
            check_passes(found, planned, graph, groups, settings, every_pass=every_pass)
    found.seconds = time.perf_counter() - start
    return found


def check_passes(
    found: Simulation,
    planned: SimulatedRound,
    graph: StepGraph,
    groups: Groups,
    settings: StepSettings,
    *,
    every_pass: bool,
) -> None:
    """Run the passes on the captured graph, and simulate it after each of them, or after all."""

    def watch(record: PassRecord, changed: StepGraph) -> None:
        if every_pass and record.status == "ran" and record.added + record.removed + record.moved:
            found.graphs.append(planned.check(changed, record.name))

    facts = make_facts(planned.source.table, groups, settings)
    passes = build_passes(settings.passes, settings.compile.numerics)
    run_passes(graph, passes, facts, watch=watch, is_measured=False)
    if not every_pass:
        found.graphs.append(planned.check(graph, "all passes"))
