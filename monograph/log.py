"""One log for the whole run: rank 0 speaks on the terminal, every rank can write a file.

Plain `logging` underneath, so users' own handlers and levels keep working.
"""

import logging
import os
import sys
from pathlib import Path

from monograph.line_file import LineFile
from monograph.system.foreign_text import escape_lines

_FORMAT = "%(asctime)s %(levelname).1s %(message)s"
_CONTINUED = "\n" + " " * len("00:00:00 I ")


class _Stderr(logging.StreamHandler):
    """Writes to whatever `sys.stderr` is at the time, so that captured or redirected output stays whole."""

    @property
    def stream(self):  # type: ignore[no-untyped-def]
        return sys.stderr

    @stream.setter
    def stream(self, value):  # type: ignore[no-untyped-def]
        pass


class _Formatter(logging.Formatter):
    """One record is one line, or a line and others that are indented: no text from outside can look like a record."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_lines(super().format(record)).replace("\n", _CONTINUED)


class _LinesHandler(logging.Handler):
    """Writes to a file that a full disk does not end: records wait until it has room again."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.lines = LineFile(path, name=f"{path.parent.name}/{path.name}")

    def emit(self, record: logging.LogRecord) -> None:
        was_failing = self.lines.error is not None
        self.lines.write(self.format(record))
        if self.lines.error is not None and not was_failing:
            reason = self.lines.error.strerror
            get_log().warning("%s cannot be written (%s): its lines wait in memory", self.lines.name, reason)

    def close(self) -> None:
        self.lines.close()
        super().close()


class _HeldHandler(logging.Handler):
    """Keeps what was logged before the run has a folder for it."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.held.append(record)


def get_log(name: str = "monograph") -> logging.Logger:
    """The logger of one module; all of them hang below `monograph`."""
    return logging.getLogger(name if name.startswith("monograph") else f"monograph.{name}")


def find_rank() -> int:
    """This process's rank as its launcher set it; 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def set_up_log(*, level: str = "info", holds: bool = False) -> None:
    """Send the log to the terminal (rank 0 only). Safe to call again.

    With `holds`, records are also kept for the file that `write_log_to` will name: a start that fails leaves none.
    """
    root = get_log()
    root.setLevel(level.upper())
    root.propagate = False
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    handlers: list[logging.Handler] = [_Stderr()] if find_rank() == 0 else []
    if holds:
        handlers.append(_HeldHandler())
    for handler in handlers or [logging.NullHandler()]:
        _add(handler)


def write_log_to(file: Path) -> None:
    """Write what was held, and everything from here on, to a file of this rank; nothing when nothing was held."""
    root = get_log()
    for held in [handler for handler in root.handlers if isinstance(handler, _HeldHandler)]:
        root.removeHandler(held)
        lines = _LinesHandler(file)
        _add(lines)
        for record in held.held:
            lines.handle(record)


def _add(handler: logging.Handler) -> None:
    handler.setFormatter(_Formatter(_FORMAT, datefmt="%H:%M:%S"))
    get_log().addHandler(handler)


def find_missing() -> list[str]:
    """What this rank's log file lacks, after a last attempt to write it."""
    found = []
    for handler in get_log().handlers:
        if isinstance(handler, _LinesHandler):
            handler.lines.flush()
            found.append(handler.lines.describe_missing())
    return [text for text in found if text]
