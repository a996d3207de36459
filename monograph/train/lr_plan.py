"""The learning rate of every step of a run that may have been continued: schedules one after the other.

A run has one schedule. Continued beyond its planned end, it either holds the last rate or gets another schedule from
the step it continued at; a checkpoint keeps all of them, so that a run that is started again has the same rates.
Loads without torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monograph.errors import CheckpointError, ConfigError
from monograph.train.lr_scheduler_config import LrSchedulerConfig

_COMPARED = 1000
"""Rates that are compared to see whether two schedules agree on the steps that lie behind."""


@dataclass(frozen=True)
class Stretch:
    """Steps with a schedule of their own."""

    start: int
    """Steps that lie behind when it begins."""
    end: int
    """The last step that it plans."""
    from_lr: float = 0.0
    """The rate that it continues from: held until the new schedule has risen to it."""


class LrPlan:
    """The rate of every step, from the first one of the run."""

    def __init__(self, config: LrSchedulerConfig, *, peak: float, stretches: list[Stretch], total: int) -> None:
        self.stretches, self.total = stretches, total
        self._schedules = [config.build(peak=peak, steps=each.end - each.start) for each in stretches]
        self._rises = [self._find_rise(number) for number in range(len(stretches))]

    def lr(self, step: int) -> float:
        """The rate of update number `step`, counted from 1; beyond the planned end it is that of the last step."""
        number = max(index for index, each in enumerate(self.stretches) if each.start < step or not each.start)
        stretch = self.stretches[number]
        local = min(step, stretch.end) - stretch.start
        if local <= self._rises[number]:
            return stretch.from_lr
        rate: float = self._schedules[number].lr(local)
        return rate

    def to_json(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"total": self.total, "stretches": [[each.start, each.end, each.from_lr] for each in self.stretches]}

    def _find_rise(self, number: int) -> int:
        """The steps of a stretch before its schedule has risen to the rate that it continues from."""
        stretch, schedule = self.stretches[number], self._schedules[number]
        if not stretch.from_lr:
            return 0
        steps = range(1, stretch.end - stretch.start + 1)
        return next((step - 1 for step in steps if schedule.lr(step) >= stretch.from_lr), 0)


@dataclass(frozen=True)
class PlannedLr:
    """The plan of a run, and what has to be said about it."""

    plan: LrPlan
    note: str = ""


def plan_lr(
    config: LrSchedulerConfig, *, peak: float, steps: int, done: int = 0, saved: Mapping[str, Any] | None = None
) -> PlannedLr:
    """The rates of a run of `steps` steps; `saved` is the plan of the checkpoint of step `done` that it continues."""
    total = config.total_steps or steps
    fresh = LrPlan(config, peak=peak, stretches=[Stretch(0, total)], total=total)
    if saved is None:
        return PlannedLr(fresh)
    kept = read_plan(saved, config, peak=peak)
    if kept.total == total or _agree(kept, fresh, done):
        return PlannedLr(kept if kept.total == total else fresh)
    stretches = kept.stretches
    if total < kept.total:
        note = f"the learning rate keeps its schedule of {kept.total} steps, although this run ends at step {steps}"
        return PlannedLr(LrPlan(config, peak=peak, stretches=stretches, total=kept.total), note)
    if config.on_extend == "hold":
        note = f"the learning rate holds at {kept.lr(kept.total):.3g} after step {stretches[-1].end}, its planned end"
        return PlannedLr(LrPlan(config, peak=peak, stretches=stretches, total=total), note)
    if config.on_extend == "redecay":
        config.check_length(total - done, f"the steps that are left after step {done}")
        stretches = [*stretches, Stretch(done, total, kept.lr(max(1, done)))]
        note = f"the learning rate has a new schedule from step {done} ({kept.lr(max(1, done)):.3g}) to step {total}"
        return PlannedLr(LrPlan(config, peak=peak, stretches=stretches, total=total), note)
    raise ConfigError(
        f"training.steps is {steps} and the checkpoint's learning rate was planned for {kept.total} steps",
        why=f"a schedule of {total} steps would have had other rates up to step {done}, so the rate would jump",
        do="--lr_scheduler.on_extend hold (stay at the last rate) or redecay (rise to the peak and decay once more)",
    )


def read_plan(saved: Mapping[str, Any], config: LrSchedulerConfig, *, peak: float) -> LrPlan:
    """The plan that `to_json` wrote."""
    try:
        stretches = [Stretch(int(start), int(end), float(lr)) for start, end, lr in saved["stretches"]]
        total = int(saved["total"])
        if not stretches or stretches[0].start or any(each.end <= each.start for each in stretches):
            raise ValueError("its schedules do not follow one another")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            "the checkpoint's learning rate plan cannot be read", why=str(error), do="load another checkpoint"
        ) from None
    return LrPlan(config, peak=peak, stretches=stretches, total=total)


def _agree(one: LrPlan, other: LrPlan, done: int) -> bool:
    """Whether two plans have the same rates for the steps that lie behind."""
    stride = max(1, done // _COMPARED)
    return all(one.lr(step) == other.lr(step) for step in {*range(1, done + 1, stride), max(1, done)})
