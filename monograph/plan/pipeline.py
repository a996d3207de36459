"""What a pipeline costs, from the units of one captured step: its schedule is simulated, not put into a formula.

A schedule of many micro-batches repeats itself: once further ones add the same each time, short ones tell how long any
longer one takes, and what it holds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monograph.machine.device import Machine
from monograph.parallel.pipeline.build import build_schedule
from monograph.parallel.pipeline.builtin import BUILTIN, is_file
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.simulate import Simulation, StageCost, simulate
from monograph.parallel.pipeline.transfers import with_transfers
from monograph.plan.choice import PipelineChoice
from monograph.plan.memory import MemoryParts
from monograph.plan.units import UnitCost, add_units, wait_for_host

_LONGEST = 4
"""Rounds of micro-batches, one on each rank, after which further ones are taken to add what the last one did."""
StageUnits = tuple[tuple[str, ...], ...]
"""By stage: for each of its units, the captured unit that costs as much."""


@dataclass(frozen=True, kw_only=True)
class PipelineEstimate:
    """An update of a pipeline."""

    busiest: UnitCost
    """One micro-batch on the rank that computes longest: all of its stages."""
    bubble_seconds: float
    """How long this rank waits for others in an update."""
    idle_seconds: float
    """How long a rank waits for others in an update, on average over all: less busy ones wait longer."""
    memory: MemoryParts
    """Of the rank that needs most."""


def estimate_pipeline(
    pipeline: PipelineChoice,
    *,
    ranks: int,
    micro_batches: int,
    units: Mapping[str, UnitCost],
    stages: StageUnits,
    machine: Machine,
    transfer_seconds: float,
    state_ratio: float,
    sent_bytes: int = 0,
) -> PipelineEstimate:
    """One update of a pipeline whose stages consist of these units; the optimizer's state is `state_ratio` times the
    trained parameters, and a carry has `sent_bytes`."""
    by_stage = [wait_for_host(add_units((units[name], 1.0) for name in names), machine) for names in stages]
    costs = [
        make_stage_cost(
            cost,
            is_first=number == 0,
            transfer_seconds=transfer_seconds,
            state_ratio=state_ratio,
            sent_bytes=sent_bytes,
        )
        for number, cost in enumerate(by_stage)
    ]
    schedule, seconds, peaks = _extrapolate(pipeline, ranks, micro_batches, costs)
    by_rank = [add_units((by_stage[stage], 1.0) for stage in schedule.stages_of(rank)) for rank in range(ranks)]
    busiest = max(by_rank, key=lambda cost: cost.seconds)
    fullest = max(range(ranks), key=peaks.__getitem__)
    return PipelineEstimate(
        busiest=busiest,
        bubble_seconds=seconds - micro_batches * busiest.seconds,
        idle_seconds=seconds - micro_batches * sum(cost.seconds for cost in by_rank) / ranks,
        memory=_divide_peak(by_rank[fullest], int(peaks[fullest]), state_ratio),
    )


def _extrapolate(
    pipeline: PipelineChoice, ranks: int, micro_batches: int, costs: Sequence[StageCost]
) -> tuple[Schedule, float, list[float]]:
    """A short schedule of the same ranks, the seconds of an update, and the peak of every rank.

    What fills and drains the pipeline may hide a slower rank at first: schedules grow until two rounds of micro-batches
    in a row add the same.
    """
    if is_file(pipeline.schedule):
        schedule, whole = _simulate(pipeline, ranks, micro_batches, costs)
        return schedule, whole.seconds, list(map(float, whole.peak_bytes))
    count = min(micro_batches, 2 * ranks)
    schedule, last = _simulate(pipeline, ranks, count, costs)
    added: float | None = None
    while count + ranks <= micro_batches:
        _, longer = _simulate(pipeline, ranks, count + ranks, costs)
        before, added = added, longer.seconds - last.seconds
        is_steady = before is not None and math.isclose(before, added, rel_tol=1e-6)
        if is_steady or count >= _LONGEST * ranks:
            rounds = (micro_batches - count) / ranks
            peaks = [a + rounds * (b - a) for a, b in zip(last.peak_bytes, longer.peak_bytes, strict=True)]
            return schedule, last.seconds + rounds * added, peaks
        count, last = count + ranks, longer
    if count < micro_batches:
        _, last = _simulate(pipeline, ranks, micro_batches, costs)
    return schedule, last.seconds, list(map(float, last.peak_bytes))


def make_stage_cost(
    cost: UnitCost, *, is_first: bool, transfer_seconds: float, state_ratio: float, sent_bytes: int = 0
) -> StageCost:
    """A stage as the simulation wants it. Nothing waits for the input gradient of the first: all of its backward can be
    put off."""
    return StageCost(
        forward_seconds=cost.forward_seconds,
        input_grad_seconds=0.0 if is_first else cost.input_grad_seconds,
        weight_grad_seconds=cost.backward_seconds if is_first else cost.weight_grad_seconds,
        transfer_seconds=transfer_seconds,
        fixed_bytes=int(cost.parameter_bytes + cost.gradient_bytes + state_ratio * cost.trained_bytes),
        saved_bytes=int(cost.saved_bytes),
        saved_for_weights_bytes=int(cost.saved_bytes if is_first else cost.saved_for_weights_bytes),
        work_bytes=int(cost.work_bytes),
        sent_bytes=sent_bytes,
    )


def _simulate(
    pipeline: PipelineChoice, ranks: int, micro_batches: int, costs: Sequence[StageCost]
) -> tuple[Schedule, Simulation]:
    name, per_rank = pipeline
    if is_file(name):
        schedule = build_schedule(name, ranks=ranks, virtual_stages=0, micro_batches=micro_batches)
    else:  # built-in ones need no check, which takes longer than the simulation
        schedule = with_transfers(BUILTIN[name](ranks, per_rank, micro_batches))
    return schedule, simulate(schedule, costs)


def _divide_peak(rank: UnitCost, peak: int, state_ratio: float) -> MemoryParts:
    optimizer = int(state_ratio * rank.trained_bytes)
    fixed = int(rank.parameter_bytes) + int(rank.gradient_bytes) + optimizer
    working = min(int(rank.work_bytes), max(0, peak - fixed))
    saved = max(0, peak - fixed - working)
    return MemoryParts(
        parameters=int(rank.parameter_bytes),
        gradients=int(rank.gradient_bytes),
        optimizer=optimizer,
        saved=saved,
        working=working,
        most_saved=saved,
    )
