"""Where the time of an update went on a pipeline rank: what was computed when, by the clock of its device."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class RunTimes:
    """Marks in time around every action. On a GPU they are events of its stream, and read later: nothing waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = self._mark()
        self._end: Any = None
        self._marks: list[tuple[str, Any, Any]] = []

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def computing(self, action: str) -> Iterator[None]:
        """Around an action."""
        start = self._mark()
        yield
        self._marks.append((action, start, self._mark()))

    def finish(self) -> None:
        """At the end of the update."""
        self._end = self._mark()

    @property
    def is_known(self) -> bool:
        """Whether the device has come to the end."""
        return self._end is not None and (self._device.type != "cuda" or self._end.query())

    def _seconds(self, one: Any, other: Any) -> float:
        return one.elapsed_time(other) / 1e3 if self._device.type == "cuda" else other - one

    @property
    def seconds(self) -> float:
        """The whole update."""
        return self._seconds(self._start, self._end)

    @property
    def spans(self) -> list[tuple[str, float, float]]:
        """Action, start and end, in seconds since the update began."""
        first = self._start
        return [(name, self._seconds(first, start), self._seconds(first, end)) for name, start, end in self._marks]

    @property
    def busy_seconds(self) -> float:
        """Time in which something was computed."""
        return sum(self._seconds(start, end) for _, start, end in self._marks)

    @property
    def bubble(self) -> float:
        """The part of the time in which nothing was."""
        return 1 - self.busy_seconds / self.seconds if self.seconds else 0.0
