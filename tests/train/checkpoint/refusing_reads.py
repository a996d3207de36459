"""Reads that the system refuses: every open and every listing below a folder, by an audit hook of Python's."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EVENTS = ("open", "os.listdir", "os.scandir")
_armed: list["RefusingReads"] = []


class RefusingReads:
    """Counts the reads below `folder` and refuses those from number `first` to number `last`, counted from 1."""

    def __init__(self, folder: Path, code: int = 0, *, first: int = 0, last: int = 0) -> None:
        self.folder, self.code, self.refused = str(folder), code, range(first, last + 1)
        self.count = 0

    def see(self, path: str) -> None:
        if path.startswith(self.folder) and not path.endswith(".lock"):
            self.count += 1
            if self.count in self.refused:
                raise OSError(self.code, os.strerror(self.code), path)


def _hook(event: str, arguments: tuple) -> None:
    if _armed and event in EVENTS and isinstance(arguments[0], str | os.PathLike):
        _armed[-1].see(os.fspath(arguments[0]))


sys.addaudithook(_hook)  # stays for good; it does nothing while none is armed


@contextmanager
def refusing(reads: RefusingReads) -> Iterator[RefusingReads]:
    """Refuse them inside of the block."""
    _armed.append(reads)
    try:
        yield reads
    finally:
        _armed.remove(reads)
