"""How a process died: exit codes in words, stacks on a fatal signal, the part of a log that says why. Without torch."""

import contextlib
import faulthandler
import signal
from collections.abc import Sequence

STACKS_VARIABLE = "PYTHONFAULTHANDLER"
"""Set for a child process, Python itself prints its stacks on a fatal signal, from the first line it runs."""
_TRACEBACK = "Traceback (most recent call last)"
_FATAL = "Fatal Python error"
_LINES_BEFORE = 15
"""Before a fatal error stand the last words of the C++ library that gave up."""
_LINES_AT_END = 10
MAX_LINES = 60


def describe_exit(code: int) -> str:
    """How a child process ended: `was killed by SIGABRT (exit code -6)`, `ended with exit code 1`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal, which has no name
        name = f"signal {-code}"
    return f"was killed by {name} (exit code {code})"


def print_stacks_on_crash() -> None:
    """On SIGABRT, SIGSEGV, SIGBUS, SIGFPE and SIGILL, print the Python stack of every thread to standard error.

    Where somebody has asked for that already (a test runner, `PYTHONFAULTHANDLER`) their choice of file stays. Standard
    error may have been replaced by something without a file; then there is nothing that a signal handler can write to.
    """
    if not faulthandler.is_enabled():
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            faulthandler.enable(all_threads=True)


def find_reason(lines: Sequence[str]) -> list[str]:
    """The part of a log that says why a process ended: its last traceback or fatal error; else its last lines."""
    starts = [index for index, line in enumerate(lines) if _TRACEBACK in line]
    starts += [max(0, index - _LINES_BEFORE) for index, line in enumerate(lines) if _FATAL in line]
    found = list(lines[max(starts) :] if starts else lines[-MAX_LINES:])
    if len(found) <= MAX_LINES:
        return found
    return [*found[: MAX_LINES - _LINES_AT_END], "...", *found[-_LINES_AT_END:]]
