"""Collectives inside of a CUDA graph have no timeout of their own: this thread gives them one.

NCCL's watchdog follows collectives that are launched one by one, and none of those that a graph replays. When a peer
dies or stops, a replay would never end, and the host would wait for it in the next copy from the device, forever.
"""

import faulthandler
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from monograph.log import get_log

log = get_log("graph")
POLL_SECONDS = 0.2
MOST_AHEAD = 2
"""Replays that were launched and have not ended. Collectives that are launched behind replays have their timeout
counted from the launch, by NCCL's watchdog, and a launch queue holds hundreds of replays; two keep the device busy."""


@dataclass(frozen=True)
class LaunchedReplay:
    """Events around a replay on its stream."""

    start: torch.cuda.Event
    end: torch.cuda.Event


class ReplayWatchdog:
    """Ends the process (SIGABRT, with the stack of every thread) when a replay runs longer than the timeout.

    Launches are asynchronous: the host may be an update ahead of the device. A replay's time therefore begins when the
    device reaches it, not when it was launched.
    """

    def __init__(self, *, timeout_seconds: float, rank: int, device: torch.device) -> None:
        self.timeout_seconds, self.rank, self.device = timeout_seconds, rank, device
        self._replays: deque[LaunchedReplay] = deque()
        """Those that the thread has not seen to end."""
        self._ahead: deque[LaunchedReplay] = deque()
        """Those that the host has not waited for."""
        self._running_since: float | None = None
        """When the oldest replay that has not ended was first seen to run."""
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="replay-watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the graph that is launched inside; waits until fewer than MOST_AHEAD others are under way."""
        while len(self._ahead) >= MOST_AHEAD:
            self._ahead.popleft().end.synchronize()
        stream = torch.cuda.current_stream(self.device)
        replay = LaunchedReplay(torch.cuda.Event(), torch.cuda.Event(blocking=True))  # waiting takes no core
        replay.start.record(stream)
        yield
        replay.end.record(stream)
        self._ahead.append(replay)
        self._replays.append(replay)

    def close(self) -> None:
        """Stop watching."""
        self._is_closed.set()
        self._thread.join()
        self._replays.clear()
        self._ahead.clear()

    def _watch(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # a thread begins on the first, and would make a context there
        while not self._is_closed.wait(POLL_SECONDS):
            if self.is_late(time.monotonic()):
                log.error(
                    "rank %d: a replayed step did not finish within %.0f s (parallelism.timeout_seconds): a peer has "
                    "stopped or died, or ranks run different steps",
                    self.rank,
                    self.timeout_seconds,
                )
                faulthandler.dump_traceback(sys.__stderr__)  # type: ignore[arg-type]
                os.abort()

    def is_late(self, now: float) -> bool:
        """Whether the oldest replay that has not ended has been running for too long."""
        while self._replays and self._replays[0].end.query():
            self._replays.popleft()
            self._running_since = None
        if not self._replays or not self._replays[0].start.query():
            return False
        if self._running_since is None:
            self._running_since = now
        return now - self._running_since > self.timeout_seconds
