"""Stopping on request: finish the step, save, leave, rather than die in the middle of it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from monograph.errors import MonographError
from monograph.log import get_log

log = get_log("signals")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StoppedOnRequest(MonographError):
    """Training ended early because it was asked to; its exit code tells a scheduler to start it again."""

    exit_code = 75


class StopRequest:
    """Whether someone asked this process to stop."""

    def __init__(self) -> None:
        self.signal_name = ""

    def __bool__(self) -> bool:
        return bool(self.signal_name)


@contextmanager
def watch_for_stop() -> Iterator[StopRequest]:
    """Note the first of SIGTERM, SIGINT, SIGUSR1; a second one takes its ordinary effect."""
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def note(number: int, _frame: FrameType | None) -> None:
        request.signal_name = signal.Signals(number).name
        log.info("%s: stopping after this step (again to stop at once)", request.signal_name)
        for known, handler in before.items():
            signal.signal(known, handler)

    try:
        for number in _SIGNALS:
            signal.signal(number, note)
    except ValueError:  # not in the main thread: signals are someone else's business there
        yield request
        return
    try:
        yield request
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)
