"""Names the rank that all others wait for: collectives make every rank as slow as the slowest, in any clock but this.

Every so many steps each rank measures how much of a step is its own work (reading data included) and how much is
waiting inside of collectives. The slow rank is the one whose own work takes longer than that of the others.
"""

import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from monograph.axes import Axis
from monograph.log import get_log
from monograph.parallel.groups import Groups
from monograph.parallel.observed_group import CollectiveTimer

log = get_log("ranks")


@dataclass(frozen=True)
class RankTime:
    """One rank's step: its own work and the waiting, in seconds."""

    own: float
    waiting: float
    host: str


class SlowRankMonitor:
    """Times every `every`-th step rank by rank, and warns of ranks above `limit` times the median; 0 never does."""

    def __init__(self, *, every: int, limit: float, groups: Groups, device: torch.device) -> None:
        self.every = every if groups.has_peers else 0
        self.limit, self.groups, self.device = limit, groups, device
        self._is_first = True
        self._timer: CollectiveTimer | None = None
        self._begin = 0.0
        self._named: tuple[int, ...] = ()
        self._is_told = False

    def is_due(self, number: int) -> bool:
        """Whether this step is timed; the first one of a process, which warms things up, never is."""
        is_first, self._is_first = self._is_first, False
        return self.every > 0 and number % self.every == 0 and not is_first

    def has_room(self, missing_bytes: int) -> bool:
        """Whether a step op by op, which alone can be timed, fits on all ranks; told once where it does not."""
        is_small = self.groups.any_rank(missing_bytes > 0)
        if is_small and not self._is_told:
            self._is_told = True
            log.info(
                "ranks are not timed (metrics.rank_times_interval): a step op by op does not fit beside its "
                "CUDA graphs; rank %d lacks %.2f GiB of memory",
                *(self.groups.rank, missing_bytes / 2**30),
            )
        return not is_small

    @contextmanager
    def timed(self, read_seconds: float) -> Iterator[None]:
        """A step that is timed, after its data took so long to come; call `collect` after it."""
        self._timer = CollectiveTimer(self.device)
        self._begin = time.perf_counter() - read_seconds
        with self.groups.observed(self._timer):
            yield

    def collect(self, number: int) -> dict[str, Any]:
        """What the record of a timed step says about the ranks, the same on every rank; nothing for other steps."""
        timer, self._timer = self._timer, None
        if timer is None:
            return {}
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        total = time.perf_counter() - self._begin
        times: list[RankTime] = self.groups.all_gather_object(
            RankTime(total - timer.seconds, timer.seconds, socket.gethostname())
        )
        self._tell(number, times)
        slowest = max(range(len(times)), key=lambda rank: times[rank].own)
        return {
            "rank_ms": {
                "median": 1000 * statistics.median(each.own for each in times),
                "slowest": 1000 * times[slowest].own,
                "slowest_rank": slowest,
                "least_waiting": 1000 * min(each.waiting for each in times),
            }
        }

    def _tell(self, number: int, times: Sequence[RankTime]) -> None:
        """Warn when other ranks than before are slow, and say when none is any more."""
        slow, usual = self._find_slow(times), find_usual_seconds(times)
        if slow and slow != self._named:
            names = ", ".join(f"rank {rank} ({times[rank].host}) {1000 * times[rank].own:.0f} ms" for rank in slow)
            log.warning(
                "step %d: slow ranks: %s of own work in a step, where %.0f ms are usual; others wait up to %.0f ms",
                *(number, names, 1000 * usual, 1000 * max(each.waiting for each in times)),
            )
        elif self._named and not slow:
            log.info("step %d: no rank is slower than %.1f times the median any more", number, self.limit)
        self._named = slow

    def _find_slow(self, times: Sequence[RankTime]) -> tuple[int, ...]:
        """Slow ranks among those of the same pipeline stage: stages have other work, and wait for each other."""
        mesh, stages = self.groups.mesh, defaultdict[int, list[int]](list)
        for rank in range(len(times)):
            stages[mesh.coordinate(rank, Axis.PP)].append(rank)
        found = [
            ranks[index]
            for ranks in stages.values()
            for index in find_slow_ranks([times[rank] for rank in ranks], self.limit)
        ]
        return tuple(sorted(found, key=lambda rank: -times[rank].own))


def find_slow_ranks(times: Sequence[RankTime], limit: float) -> tuple[int, ...]:
    """Ranks whose own work takes longer than `limit` times what is usual, the slowest first."""
    own, usual = [each.own for each in times], find_usual_seconds(times)
    return tuple(sorted((r for r, each in enumerate(own) if each > limit * usual), key=lambda r: -own[r]))


def find_usual_seconds(times: Sequence[RankTime]) -> float:
    """The median of the ranks' own work; of two ranks it lies between both, so there the faster one is the measure."""
    own = [each.own for each in times]
    return min(own) if len(own) == 2 else statistics.median(own)
