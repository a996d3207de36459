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

import torch

from monograph.log import get_log

log = get_log("graph")
POLL_SECONDS = 0.2


class ReplayWatchdog:
    """Ends the process (SIGABRT, with the stack of every thread) when a replay takes longer than the timeout."""

    def __init__(self, *, timeout_seconds: float, rank: int) -> None:
        self.timeout_seconds, self.rank = timeout_seconds, rank
        self.lock = threading.Lock()
        """Held while a graph is recorded: CUDA forbids asking for events meanwhile."""
        self._replays: deque[tuple[float, torch.cuda.Event]] = deque()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="replay-watchdog", daemon=True)
        self._thread.start()

    def add(self) -> None:
        """A graph was launched on the current stream."""
        event = torch.cuda.Event()
        event.record()
        self._replays.append((time.monotonic(), event))

    def close(self) -> None:
        """Stop watching."""
        self._is_closed.set()
        self._thread.join()
        self._replays.clear()

    def _watch(self) -> None:
        while not self._is_closed.wait(POLL_SECONDS):
            with self.lock:
                is_late = self.is_late(time.monotonic())
            if is_late:
                log.error(
                    "rank %d: a replayed step did not finish within %.0f s (parallelism.timeout_seconds): a peer has "
                    "stopped or died, or ranks run different steps",
                    self.rank,
                    self.timeout_seconds,
                )
                faulthandler.dump_traceback(sys.__stderr__)  # type: ignore[arg-type]
                os.abort()

    def is_late(self, now: float) -> bool:
        """Whether the oldest replay that still runs was launched too long ago."""
        while self._replays and self._replays[0][1].query():
            self._replays.popleft()
        return bool(self._replays) and now - self._replays[0][0] > self.timeout_seconds
