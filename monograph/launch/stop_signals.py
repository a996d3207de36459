"""How an agent or launcher is asked to stop, and how it asks its ranks: once, whatever it is told several times."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException

from monograph.errors import MonographError
from monograph.train.signals import SAME_REQUEST_SECONDS

TORCH_HANDLES = "SIGHUP,SIGQUIT"
"""What is left to torch's own handlers, which raise at every signal: `LaunchConfig.signals_to_handle`."""
_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class EndedAtOnce(MonographError):
    """Ranks were asked to stop a second time and may have saved nothing, so a scheduler must not take it for a stop."""

    label = "stopped"


def check_asked_once(heard: Sequence[str]) -> None:
    """Raise EndedAtOnce when a second request has ended the ranks; its exit code is a shell's for that signal."""
    if len(heard) > 1:
        error = EndedAtOnce(f"{heard[0]}, then {heard[-1]}: the ranks were ended at once")
        error.exit_code = 128 + signal.Signals[heard[-1]]
        raise error


@contextmanager
def passed_on() -> Iterator[list[str]]:
    """Let torch's agent stop its ranks at the first of these signals; yields the names of those that did.

    Ranks get SIGUSR1, which asks and never kills: a scheduler that signals every process of a node has asked them as
    well, moments ago. A later signal goes on as it is, so that asking again ends them at once.
    """
    heard: list[str] = []
    first = 0.0

    def tell(number: int, _frame: FrameType | None) -> None:
        nonlocal first
        name, now = signal.Signals(number).name, time.monotonic()
        if heard and now - first < SAME_REQUEST_SECONDS:
            return
        is_first, first = not heard, first or now
        heard.append(name)
        raise SignalException(f"{name} was received", sigval=signal.SIGUSR1 if is_first else signal.Signals(number))

    before: dict[int, Any] = {number: signal.signal(number, tell) for number in _NUMBERS}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
