"""Ranks do not outlive what started them: nobody else would stop them. Loads without torch, because it comes first."""

import ctypes
import os
import signal
import sys
import threading
from types import FrameType

LAUNCHER_VARIABLE = "MONOGRAPH_LAUNCHER_PID"
"""Who starts ranks, as they are told: one that is born later has another parent by the time it can look."""
_PR_SET_PDEATHSIG = 1
"""From Linux's prctl.h."""


def follow_launcher() -> None:
    """Stop in order, as on SIGTERM, when the launcher hangs up or dies without a word, also if it has died already.

    The kernel may say so several times (once for each thread of the launcher). Python may begin with the second while
    the first has not run a line yet, so which of them is the first is up to a lock.
    """
    first = threading.Lock()

    def stop_once(_number: int, _frame: FrameType | None) -> None:
        if first.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGTERM)

    launcher = os.environ.pop(LAUNCHER_VARIABLE, None)
    is_launched = launcher is not None or "TORCHELASTIC_RUN_ID" in os.environ  # by a process, and not by hand
    is_protected = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup: a lost terminal ends nothing
    if sys.platform == "linux" and is_launched:
        if not is_protected:
            signal.signal(signal.SIGHUP, stop_once)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM if is_protected else signal.SIGHUP)
        if launcher not in (None, str(os.getppid()), str(os.getpid())) and is_gone(launcher):
            os.kill(os.getpid(), signal.SIGTERM)


def is_gone(launcher: str) -> bool:
    """Whether the process that started this one has ended. A wrapper, such as a profiler or a container, may stand
    between the two; in a container of its own, where the launcher is not seen, a rank without a parent is an orphan."""
    return os.getppid() == 1 or not os.path.exists(f"/proc/{launcher}")
