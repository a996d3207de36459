"""Steps that are looked at more closely: replayed to find faulty hardware, timed rank by rank to find slow ones."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from monograph.parallel.groups import Groups
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.goodput import CHECKS, GoodputClock
from monograph.train.measure import StepMeasurement
from monograph.train.replay_check import ReplayCheck
from monograph.train.slow_ranks import SlowRankMonitor
from monograph.train.step import Step


class StepChecks:
    """Runs updates, and around some of them the checks that are due; none of them changes a bit."""

    def __init__(self, config: TrainerConfig, *, step: Step, groups: Groups, goodput: GoodputClock) -> None:
        self.step, self.goodput = step, goodput
        self.replay = ReplayCheck(every=config.debug.replay_every, step=step, groups=groups)
        self.slow_ranks = SlowRankMonitor(
            every=config.metrics.rank_times_interval if config.has_explicit_collectives else 0,
            limit=config.metrics.slow_rank_limit,
            groups=groups,
            device=step.device,
        )

    def run(
        self, number: int, read: Callable[[], list[Batch]], apply: Callable[[Sequence[Batch]], StepMeasurement | None]
    ) -> StepMeasurement | None:
        """One update: `read` its micro-batches, check what is due, `apply` it. None when it was not made."""
        is_replayed = self.replay.is_due(number)
        is_timed = self.slow_ranks.is_due(number) and self.slow_ranks.has_room(self.step.find_missing_memory())
        with ExitStack() as stack:
            if is_replayed or is_timed:
                stack.enter_context(self.step.op_by_op())
            start = time.perf_counter()
            chosen = read()
            read_seconds = time.perf_counter() - start
            if is_replayed:
                with self.goodput.phase(CHECKS):
                    self.replay.run(number, chosen[0].tensors)
            if is_timed:
                stack.enter_context(self.slow_ranks.timed(read_seconds))
            measured = apply(chosen)
        found = self.slow_ranks.collect(number)
        return None if measured is None else replace(measured, known={**measured.known, **found})
