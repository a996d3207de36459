"""One round of micro-batches on every rank of a mesh: what graphs of the step are run on, and what they should give."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from monograph.capture.source import StepSource
from monograph.graph.step_graph import StepGraph
from monograph.parallel.param_table import ParamTable
from monograph.train.config import TrainerConfig
from monograph.verify.run import in_fp32, on_one_device
from monograph.verify.simulate.coordinates import Coordinates
from monograph.verify.simulate.execute import Execution, GraphMachine
from monograph.verify.simulate.inputs import MeshInputs
from monograph.verify.simulate.one_device import Expected, OneDevice
from monograph.verify.simulate.outcome import Comparison, compare_outputs
from monograph.verify.simulate.start import MAX_BATCHES, draw_batches, share_batches

MOST_ROUNDS = 2
"""Rounds of an update that are simulated: the second is added to the first as all others are."""


@dataclass(frozen=True, kw_only=True)
class SimulatedGraph:
    """One graph of the step on all coordinates."""

    after: str
    """The pass that made it, or `captured`."""
    nodes: int
    execution: Execution
    comparison: Comparison
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SimulatedRound:
    """One round of micro-batches on every rank, ready to run graphs on."""

    source: StepSource
    coordinates: Coordinates
    device: OneDevice
    drawn: Sequence[dict[str, Tensor]]
    dealt: Sequence[int]
    expected: Expected
    later: tuple["SimulatedRound", ...] = ()
    """The other rounds of the update."""

    @property
    def rounds(self) -> tuple["SimulatedRound", ...]:
        """All rounds of the update, of which this is the first."""
        return (self, *self.later)

    def make_inputs(
        self,
        source: StepSource | None = None,
        coordinates: Coordinates | None = None,
        dealt: Sequence[int] | None = None,
    ) -> MeshInputs:
        """The inputs of a graph captured from `source`, by default this round's own, whose data-parallel ranks read
        the micro-batches `dealt`."""
        places = coordinates or self.coordinates
        given = (self.device, self.drawn, dealt or self.dealt, self.expected.scalars)
        return MeshInputs(source or self.source, places, *given)

    def check(self, graph: StepGraph, after: str) -> SimulatedGraph:
        """Run a graph on all coordinates and compare its outputs."""
        return self._check(graph, after, self.expected, self.source.table)

    def check_evaluation(self, graph: StepGraph, after: str) -> SimulatedGraph:
        """The same for the graph of an evaluation, of whose outputs only the loss counts."""
        expected = Expected(loss=self.device.evaluate(self.drawn, self.dealt, self.expected.scalars))
        return self._check(graph, after, expected, self.source.table.of_units([]))

    def _check(self, graph: StepGraph, after: str, expected: Expected, table: ParamTable) -> SimulatedGraph:
        start = time.perf_counter()
        execution = GraphMachine(graph, self.coordinates).run(self.make_inputs().bind)
        comparison = compare_outputs(graph.outputs, execution.results, expected, table, self.coordinates)
        return SimulatedGraph(
            after=after,
            nodes=len(graph.nodes),
            execution=execution,
            comparison=comparison,
            seconds=time.perf_counter() - start,
        )


def plan_round(config: TrainerConfig, source: StepSource, coordinates: Coordinates, *, seed: int = 0) -> SimulatedRound:
    """Random weights and the micro-batches of an update for a source captured from `config`, and what one device makes
    of them: the first round, with one more where a run has several."""
    device = OneDevice(on_one_device(in_fp32(config)), compute_dtype=source.compute_dtype, seed=seed)
    parts = coordinates.mesh.data_parts
    count, each = min(count_rounds(config, parts), MOST_ROUNDS), min(parts, MAX_BATCHES)
    drawn = draw_batches(config, device.model, count * each, seed)
    deals = [
        [number * each + card for card in share_batches(coordinates.mesh, seed + number)] for number in range(count)
    ]
    first, *later = (
        SimulatedRound(
            source=source, coordinates=coordinates, device=device, drawn=drawn, dealt=dealt, expected=expected
        )
        for dealt, expected in zip(deals, device.run(drawn, deals), strict=True)
    )
    return replace(first, later=tuple(later))


def count_rounds(config: TrainerConfig, parts: int) -> int:
    """Micro-batches of an update on each data-parallel rank."""
    training = config.training
    return max(1, training.global_batch_size // (training.local_batch_size * parts))
