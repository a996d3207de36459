"""Stopping on request: finish the step, save, leave, rather than die in the middle of it. Loads without torch."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from monograph.errors import MonographError
from monograph.log import find_rank

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SAME_REQUEST_SECONDS = 2.0
"""What comes so soon after the first signal is the same request: schedulers signal every process of a node, and the
launcher passes on what it was told."""


class StoppedOnRequest(MonographError):
    """Training ended early because it was asked to; its exit code tells a scheduler to start it again."""

    exit_code = 75
    label = "stopped"


class StopRequest:
    """Whether someone asked this process to stop; itself the handler of the signals that ask.

    Inside of `at_once` the first of them also raises, as Ctrl-C does. Python drops what is raised in a callback (of a
    weak reference, of a collected object), and libraries catch too much: so what counts is the note.
    """

    def __init__(self) -> None:
        self.signal_name = ""
        self._first = 0.0
        self._raises = False
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return bool(self.signal_name)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Note the first signal. A later SIGTERM or SIGINT takes its ordinary effect, and SIGUSR1 only ever asks."""
        if not self.signal_name:
            self._note(number)
        elif number != signal.SIGUSR1 and time.monotonic() - self._first >= SAME_REQUEST_SECONDS:
            self.uninstall()
            os.kill(os.getpid(), number)

    def _note(self, number: int) -> None:
        self._first, self.signal_name = time.monotonic(), signal.Signals(number).name
        if signal.SIGHUP in self._before:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if self._raises:
            raise KeyboardInterrupt
        if find_rank() == 0:  # not through the log, which this handler may have interrupted half way through a line
            again = f"again after {SAME_REQUEST_SECONDS:g} s to stop at once"
            os.write(2, f"{self.signal_name}: stopping after this step ({again})\n".encode())

    def install(self) -> None:
        """Take the signals over, except one whose handler Python does not know, and so could not put back."""
        handlers = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGHUP)}
        self._before = {number: handler for number, handler in handlers.items() if handler is not None}
        for number in self._before.keys() & set(_SIGNALS):
            signal.signal(number, self)

    def uninstall(self) -> None:
        """Put back what was there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Leave when a request was noted before the first step: there is nothing to save yet."""
        if self:
            raise StoppedOnRequest(f"{self.signal_name}: stopped before the first step")

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """While a run is put together (tracing, compiling, reading): a request ends it with exit code 75.

        There is nothing to save yet, and a scheduler that took the machine away should start the job again.
        """
        self.check()
        self._raises = True
        try:
            yield
        except KeyboardInterrupt:
            self.check()
            raise
        finally:
            self._raises = False
        self.check()


@contextmanager
def watch_for_stop() -> Iterator[StopRequest]:
    """Note the first of SIGTERM, SIGINT, SIGUSR1; a second one, a while later, takes its ordinary effect.

    Who was asked does not mind a terminal that closes or a launcher that dies meanwhile (SIGHUP): that must not end the
    save. Inside of another watch it is that one, so nothing is lost between them. Outside the main thread, where Python
    has no signals, nothing is noted.
    """
    outer = signal.getsignal(signal.SIGTERM)
    if isinstance(outer, StopRequest):
        yield outer
        return
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    request.install()
    try:
        yield request
    finally:
        request.uninstall()
