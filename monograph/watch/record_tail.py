"""metrics.jsonl as it grows: each look at it reads only what was added. Loads without torch."""

from io import BufferedReader
from pathlib import Path
from typing import Any

from monograph.system.foreign_json import UnusableFile, open_regular
from monograph.train.records import parse_record

_PIECE_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20
"""Of one record; a file with a longer line, such as one of zeros without end, is none of ours."""


class RecordTail:
    """Reads the whole lines of a file; one that was shortened or replaced since is read anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: list[dict[str, Any]] = []
        self._offset = 0
        self._last_line = b""
        """The line before `_offset`: where it is still there, everything before it is, too."""

    def read(self) -> list[dict[str, Any]]:
        """All records so far; what a killed run left of a line is passed over."""
        try:
            with open_regular(self.path) as file:
                self._read_on(file)
        except FileNotFoundError:
            self._forget()
        return self._records

    def _read_on(self, file: BufferedReader) -> None:
        file.seek(self._offset - len(self._last_line))
        if file.read(len(self._last_line)) != self._last_line:
            self._forget()
            file.seek(0)
        rest: list[bytes] = []
        while piece := file.read(_PIECE_BYTES):
            if b"\n" in piece:
                *lines, tail = b"".join([*rest, piece]).split(b"\n")
                self._offset += sum(map(len, lines)) + len(lines)
                self._last_line = lines[-1] + b"\n"
                self._records += [record for record in map(parse_record, lines) if record is not None]
                rest = [tail]
            else:
                rest.append(piece)
            if len(rest) * _PIECE_BYTES > MAX_LINE_BYTES:
                raise UnusableFile(
                    f"cannot read {self.path}",
                    why=f"a line has more than {MAX_LINE_BYTES >> 20} MiB, which no record has",
                )

    def _forget(self) -> None:
        self._records, self._offset, self._last_line = [], 0, b""
