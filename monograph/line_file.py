"""A file of lines that outlives a full disk: a line is in the file whole or not at all, and a run never ends over it.

When the disk refuses, lines wait in memory, in order, and are written as soon as it takes them again. What had to be
given up, because memory for waiting lines is bounded or the program ended first, is known by its steps.
"""

import os
from collections import deque
from pathlib import Path

from monograph.system.own_file import open_own

MAX_WAITING_BYTES = 16 << 20
"""Of lines that wait for the disk; beyond it the oldest are given up."""


class FileCalls:
    """The system calls, one method each, so that tests can make each of them fail."""

    def open(self, path: Path) -> int:
        return open_own(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def write(self, file: int, data: bytes) -> int:
        return os.write(file, data)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def close(self, file: int) -> None:
        os.close(file)


class Steps:
    """A set of steps as ranges, which stays small however many there are; they come in rising order."""

    def __init__(self) -> None:
        self.ranges: list[list[int]] = []
        self.count = 0

    def add(self, step: int) -> None:
        self.count += 1
        if self.ranges and step <= self.ranges[-1][1] + 1:
            self.ranges[-1][1] = max(step, self.ranges[-1][1])
        else:
            self.ranges.append([step, step])

    def copy(self) -> "Steps":
        other = Steps()
        other.ranges, other.count = [[*each] for each in self.ranges], self.count
        return other

    def __str__(self) -> str:
        texts = [str(first) if first == last else f"{first}-{last}" for first, last in self.ranges]
        shown = texts if len(texts) <= 8 else [*texts[:4], "...", *texts[-3:]]
        is_one = len(texts) == 1 and self.ranges[0][0] == self.ranges[0][1]
        return f"step{'' if is_one else 's'} {', '.join(shown)}"


class LineFile:
    """Appends lines to `path`. No method raises; `error` says why the newest lines are not in the file, if so."""

    def __init__(
        self,
        path: Path,
        *,
        name: str = "",
        calls: FileCalls | None = None,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self.path, self.name = path, name or path.name
        self.error: OSError | None = None
        self._calls = calls or FileCalls()
        self._max_waiting_bytes = max_waiting_bytes
        self._file: int | None = None
        self._waiting: deque[tuple[int | None, bytes]] = deque()
        self._waiting_bytes = 0
        self._lost = Steps()
        self._lost_lines = 0
        self._good_size: int | None = None
        self._reason = ""

    @property
    def waiting(self) -> int:
        """Lines that are not in the file yet."""
        return len(self._waiting)

    def write(self, line: str, *, step: int | None = None) -> None:
        """Add a line; it is in the file when this returns, unless `error` says otherwise."""
        data = line.encode() + b"\n"
        self._waiting.append((step, data))
        self._waiting_bytes += len(data)
        self.flush()
        while self._waiting_bytes > self._max_waiting_bytes:
            oldest, data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            self._lost_lines += 1
            if oldest is not None:
                self._lost.add(oldest)

    def flush(self) -> None:
        """Try to write what waits."""
        try:
            self._open()
            self._remove_partial_line()
            while self._waiting:
                self._append(self._waiting[0][1])
                self._waiting_bytes -= len(self._waiting.popleft()[1])
        except OSError as error:
            self.error, self._reason = error, error.strerror or str(error)
        else:
            self.error = None

    def close(self) -> None:
        """Try a last time, and close the file. Safe to call twice."""
        if self._waiting:
            self.flush()
        file, self._file = self._file, None
        if file is None:
            return
        try:
            self._calls.close(file)
        except OSError as error:  # some file systems say only now that there was no room
            self.error, self._reason = error, error.strerror or str(error)

    def describe_missing(self) -> str:
        """What the file lacks, and why; empty when it lacks nothing."""
        count = self._lost_lines + len(self._waiting)
        if not count:
            return f"{self.name} may lack its last lines: {self._reason}" if self.error else ""
        steps = self._lost.copy()
        for step, _ in self._waiting:
            if step is not None:
                steps.add(step)
        what = str(steps) if steps.count else f"{count} line{'s' if count > 1 else ''}"
        partial = "; its last line is incomplete" if self._good_size is not None else ""
        return f"{self.name} lacks {what}: {self._reason}{partial}"

    def _open(self) -> None:
        if self._file is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self._calls.open(self.path)
        self._file = file
        size = self._calls.size(file)
        if size and os.pread(file, 1, size - 1) != b"\n":  # a killed process left part of a line
            self._waiting.appendleft((None, b"\n"))
            self._waiting_bytes += 1

    def _append(self, data: bytes) -> None:
        assert self._file is not None, "opened by flush"
        size = self._calls.size(self._file)
        rest = data
        try:
            while rest:
                rest = rest[self._calls.write(self._file, rest) :]
        except OSError:
            if len(rest) < len(data):
                self._good_size = size
                self._remove_partial_line()
            raise

    def _remove_partial_line(self) -> None:
        if self._good_size is not None and self._file is not None:
            self._calls.truncate(self._file, self._good_size)
            self._good_size = None
