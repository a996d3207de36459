"""When a step ended: by the host's clock on a CPU, by events of the device's own stream on a GPU.

A GPU runs behind the host. What the host's clock says when a result is read depends on how long nobody read one, so a
step timed by it can seem to take no time at all. An event is stamped by the device when the work before it is done.
"""

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Stamps moments of a device's work; the time between two stamps is known once the device has passed both."""

    delay: int
    """How many steps may be under way before a result is read: waiting for the newest would drain a GPU's queue."""

    def stamp(self) -> Any:
        """This moment: when everything launched so far is done."""
        ...

    def seconds_between(self, start: Any, end: Any) -> float:
        """Seconds from one stamp to another; waits until the device has passed the second."""
        ...


class HostClock:
    """For devices whose work is done when a call returns."""

    delay = 0

    def stamp(self) -> float:
        return time.perf_counter()

    def seconds_between(self, start: float, end: float) -> float:
        return end - start


class CudaClock:
    """Events of a CUDA device's current stream."""

    delay = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def stamp(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds_between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return start.elapsed_time(end) / 1000


def find_clock(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
