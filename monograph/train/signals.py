"""Stopping on request: finish the step, save, leave, rather than die in the middle of it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from monograph.errors import MonographError
from monograph.log import find_rank

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StoppedOnRequest(MonographError):
    """Training ended early because it was asked to; its exit code tells a scheduler to start it again."""

    exit_code = 75
    label = "stopped"


class StopRequest:
    """Whether someone asked this process to stop."""

    def __init__(self) -> None:
        self.signal_name = ""

    def __bool__(self) -> bool:
        return bool(self.signal_name)


@contextmanager
def watch_for_stop() -> Iterator[StopRequest]:
    """Note the first of SIGTERM, SIGINT, SIGUSR1; a second one takes its ordinary effect.

    Who was asked does not mind a terminal that closes or a launcher that dies meanwhile (SIGHUP): that must not end the
    save. A signal with a handler that Python does not know, and so could not put back, is left alone. Outside the main
    thread, where Python has no signals, nothing is noted.
    """
    request = StopRequest()
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGHUP)}
        before = {number: handler for number, handler in handlers.items() if handler is not None}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        request.signal_name = signal.Signals(number).name
        restore()
        if signal.SIGHUP in before:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if find_rank() == 0:  # not through the log, which this handler may have interrupted half way through a line
            os.write(2, f"{request.signal_name}: stopping after this step (again to stop at once)\n".encode())

    try:
        for number in before.keys() & set(_SIGNALS):
            signal.signal(number, note)
        yield request
    finally:
        restore()


@contextmanager
def stop_at_once() -> Iterator[None]:
    """While a run is put together (tracing, compiling, reading): SIGTERM, SIGINT or SIGUSR1 ends it with exit code 75.

    There is nothing to save yet, and a scheduler that took the machine away should start the job again.
    """
    before: dict[int, Any] = {}

    def leave(number: int, _frame: FrameType | None) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        raise StoppedOnRequest(f"{signal.Signals(number).name}: stopped before the first step")

    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        before = {number: handler for number, handler in handlers.items() if handler is not None}
        for number in before:
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
