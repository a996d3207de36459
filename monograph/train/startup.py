"""Where the time before the first step goes: users pay for it on every start, so it is measured and shown."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_EARLY: dict[str, float] = {}
"""What the command line measured before it knew what to start."""


@contextmanager
def early_phase(name: str) -> Iterator[None]:
    """Time a stretch that lies before the run itself; its `Startup` will show it."""
    start = time.perf_counter()
    yield
    _EARLY[name] = time.perf_counter() - start


class Startup:
    """Named stretches of time between the start of the process and the end of the first step."""

    def __init__(self) -> None:
        age = seconds_since_process_start() if _EARLY else _AGE_WHEN_IMPORTED
        self.seconds: dict[str, float] = {"import": max(0.0, age - sum(_EARLY.values())), **_EARLY}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one stretch; a name used twice adds up."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def lines(self) -> list[str]:
        """The table, one stretch a line, with its total."""
        rows = [*self.seconds.items(), ("total", sum(self.seconds.values()))]
        width = max(len(name) for name, _ in rows)
        return ["time to the first step", *(f"  {name:<{width}}  {seconds:7.2f} s" for name, seconds in rows)]


def seconds_since_process_start() -> float:
    """Age of this process, interpreter start and imports included; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks_per_second = os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - float(fields[19]) / ticks_per_second)
    except (OSError, AttributeError, IndexError, ValueError):
        return 0.0


_AGE_WHEN_IMPORTED = seconds_since_process_start()
"""For runs that no command started: what a process does between its imports and a run is none of our time."""
