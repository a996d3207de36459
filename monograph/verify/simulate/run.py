"""Simulate one update of a run on its whole mesh, in one process, and compare it with one device."""

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.train.config import TrainerConfig
from monograph.verify.run import without_float8
from monograph.verify.simulate.captured import ALL_PASSES, CapturedStages, capture_step
from monograph.verify.simulate.collectives import count_collectives
from monograph.verify.simulate.coordinates import Coordinates
from monograph.verify.simulate.locate import locate_fault
from monograph.verify.simulate.rounds import SimulatedGraph, SimulatedRound, plan_round
from monograph.verify.simulate.small_copy import make_real_sample, make_small_copy
from monograph.verify.simulate.stages import find_stage_mesh
from monograph.verify.simulate.structure import CAPTURED, StructureCheck, compare_structure
from monograph.verify.simulate.update import SimulatedUpdate, UpdateDifference

EVALUATION = "evaluation"
"""How the names of its graphs begin."""


@dataclass(kw_only=True)
class MeshSimulation:
    """What was simulated, and what came of it."""

    config: TrainerConfig
    """The small copy."""
    mesh: Mesh
    graphs: list[SimulatedGraph] = field(default_factory=list)
    collectives: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often the captured graph has each collective over each group."""
    blame: str = ""
    """Where the first fault is; empty where there is none."""
    update: list[UpdateDifference] = field(default_factory=list)
    """The numbers of the update around the captured graph."""
    structures: list[StructureCheck] = field(default_factory=list)
    """Whether the run's own graphs have the structure of the copy's; empty where the copy is the run."""
    different_batches: int = 0
    """Micro-batches of a round that are not the same."""
    seconds: float = 0.0

    @property
    def is_equal(self) -> bool:
        """Whether every output of every graph is what one device computes."""
        is_update_right = not any(entry.is_wrong for entry in self.update)
        return is_update_right and all(graph.comparison.is_equal for graph in self.graphs)

    @property
    def worst(self) -> float:
        """The largest relative difference."""
        differences = [entry.difference for entry in self.update]
        return max([*differences, *(graph.comparison.worst for graph in self.graphs)], default=0.0)

    @property
    def peak_bytes(self) -> int:
        """The most memory that values of one graph had."""
        return max((graph.execution.peak_bytes for graph in self.graphs), default=0)


def simulate(config: TrainerConfig, mesh: Mesh, *, every_pass: bool = False, seed: int = 0) -> MeshSimulation:
    """One update of the run's small copy: the captured graph and the one after all passes, or after each of them."""
    start = time.perf_counter()
    small = make_small_copy(without_float8(config), mesh)
    found = MeshSimulation(config=small, mesh=mesh)
    with fake_groups(mesh, 0, torch.device("cpu")) as groups:
        step = capture_step(small, groups)
        planned = plan_round(small, step.source, Coordinates(find_stage_mesh(mesh)), seed=seed)
        found.different_batches = len(planned.drawn)
        graph = step.joined()
        found.collectives = count_collectives(graph)
        for number, each in enumerate(planned.rounds, 1):
            found.graphs.append(each.check(graph, CAPTURED if number == 1 else f"{CAPTURED}, round {number}"))
        if found.is_equal:
            results = [checked.execution.results for checked in found.graphs]
            found.update = SimulatedUpdate(planned, graph, results, small, step.plan).compare()
            wrong = next((entry for entry in found.update if entry.is_wrong), None)
            found.blame = "" if wrong is None else f"outside of the graph: {wrong}"
        if found.is_equal:
            check_passes(found, planned, step, every_pass=every_pass)
        if found.is_equal and small.needs_evaluation():
            check_evaluation(found, planned, capture_step(small, groups, kind="evaluation"))
        if found.is_equal and small.model != config.model:
            found.structures = list(
                check_structures(step, capture_step(make_real_sample(without_float8(config), small), groups))
            )
    if not found.graphs[0].comparison.is_equal:
        found.blame = find_blame(found, planned)
    for checked in found.graphs:
        checked.execution.results = []
    found.seconds = time.perf_counter() - start
    return found


def check_structures(small: CapturedStages, real: CapturedStages) -> Iterator[StructureCheck]:
    """Compare the graphs of a copy with those at the run's own sizes, as captured and after all passes."""
    yield compare_structure(real.graphs, small.graphs, CAPTURED)
    yield compare_structure(real.optimized(), small.optimized(), ALL_PASSES)


def check_passes(found: MeshSimulation, planned: SimulatedRound, step: CapturedStages, *, every_pass: bool) -> None:
    """Run the passes on the captured step, and simulate it after each of them, or after all."""
    for name, graph in step.run_passes(every_pass=every_pass):
        found.graphs.append(planned.check(graph, name))
    wrong = next((checked for checked in found.graphs if not checked.comparison.is_equal), None)
    if wrong is not None:
        found.blame = f"in the graph after {wrong.after}: {wrong.comparison.wrong[0]}"


def check_evaluation(found: MeshSimulation, planned: SimulatedRound, evaluation: CapturedStages) -> None:
    """Simulate the graph of an evaluation, as captured and after all passes."""
    graphs = itertools.chain([(CAPTURED, evaluation.joined())], evaluation.run_passes(every_pass=False))
    for name, graph in graphs:
        checked = planned.check_evaluation(graph, f"{EVALUATION}, {name}")
        found.graphs.append(checked)
        if not checked.comparison.is_equal:
            found.blame = f"in the graph of the {checked.after}: {checked.comparison.wrong[0]}"
            return


def find_blame(found: MeshSimulation, planned: SimulatedRound) -> str:
    """The first node that is wrong in the captured graph, which is captured once more with the lines of its code."""
    with fake_groups(found.mesh, 0, torch.device("cpu")) as groups:
        graph = capture_step(found.config, groups, has_sources=True).joined()
    wrong = found.graphs[0].comparison.wrong
    return str(locate_fault(graph, planned, found.config, wrong) or wrong[0])
