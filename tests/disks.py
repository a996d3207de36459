"""Files on a disk that fails when a test says so."""

import errno
import os

from monograph.line_file import FileCalls


class FailingCalls(FileCalls):
    """Real system calls, except those named in `broken`; with `room`, that many bytes still fit."""

    def __init__(self, *broken: str, code: int = errno.ENOSPC, room: int = 0) -> None:
        self.broken, self.code, self.room = set(broken), code, room

    def heal(self) -> None:
        self.broken.clear()

    def _fail(self, name: str) -> None:
        if name in self.broken:
            raise OSError(self.code, os.strerror(self.code))

    def open(self, path):
        self._fail("open")
        return super().open(path)

    def write(self, file, data):
        if "write" in self.broken:
            if not self.room:
                self._fail("write")
            data = data[: self.room]
            self.room -= len(data)
        return super().write(file, data)

    def truncate(self, file, size):
        self._fail("truncate")
        super().truncate(file, size)

    def close(self, file):
        super().close(file)
        self._fail("close")
