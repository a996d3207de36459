"""What cannot be written does not end a run: one policy for everything but the last checkpoint.

A writer that fails is named once in a warning; training goes on and the writer is tried again later; at the end the log
and the summary say what is missing, and why.
"""

import time
from collections.abc import Callable
from pathlib import Path

from monograph.line_file import LineFile, Steps
from monograph.log import get_log
from monograph.whole_file import write_whole

log = get_log("write")
RETRY_SECONDS = 30.0
"""A sink that failed is left alone for so long: opening it again may leave a new file behind each time."""


class WriteFailures:
    """The failures of one writer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._missing = Steps()
        self._reason = ""
        self._is_failing = False

    def failed(self, error: Exception, *, step: int | None = None) -> None:
        """Note a failure; the first of several in a row is told at once."""
        self._reason = find_reason(error)
        if not self._is_failing:
            self._is_failing = True
            log.warning("%s cannot be written (%s): training goes on, and it is tried again", self.name, self._reason)
        if step is not None:
            self._missing.add(step)

    def skipped(self, step: int) -> None:
        """Note a step that was not even tried, because the writer has just failed."""
        self._missing.add(step)

    def worked(self) -> None:
        """Note a success."""
        if self._is_failing:
            self._is_failing = False
            log.info("%s is written again", self.name)

    def describe(self) -> str:
        """What is missing, and why; empty when nothing is."""
        if self._missing.count:
            return f"{self.name} lacks {self._missing}: {self._reason}"
        return f"{self.name} is missing: {self._reason}" if self._is_failing else ""


class RetriedWrite:
    """Something done once per step by `work(step)`, which may fail and then pauses for a while."""

    def __init__(self, name: str, *, pause_seconds: float | None = None) -> None:
        self.failures = WriteFailures(name)
        self._pause = RETRY_SECONDS if pause_seconds is None else pause_seconds
        self._failed_at: float | None = None

    def attempt(self, step: int, work: Callable[[], None]) -> bool:
        """Do the work; whether it was done. Any failure of another's library counts as one of its storage."""
        if self._failed_at is not None and time.monotonic() - self._failed_at < self._pause:
            self.failures.skipped(step)
            return False
        try:
            work()
        except Exception as error:
            self._failed_at = time.monotonic()
            self.failures.failed(error, step=step)
            return False
        self._failed_at = None
        self.failures.worked()
        return True


class SmallFile:
    """A file that is written in one piece as soon as the disk takes it."""

    def __init__(self, path: Path, content: str | bytes) -> None:
        self.path, self.content = path, content
        self.failures = WriteFailures(path.name)
        self.is_written = False

    def attempt(self) -> None:
        """Write it, unless that has been done."""
        if self.is_written:
            return
        try:
            write_whole(self.path, self.content)
        except OSError as error:
            self.failures.failed(error)
            return
        self.is_written = True
        self.failures.worked()


def watch_lines(lines: LineFile, trouble: WriteFailures) -> None:
    """Tell when lines begin to wait for the disk, and when they are all in the file again."""
    if lines.error is not None:
        trouble.failed(lines.error)
    else:
        trouble.worked()


def find_reason(error: Exception) -> str:
    """Why it failed, in as few words as there are."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
