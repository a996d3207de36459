"""metrics.jsonl as it grows: each look at it reads only what was added. Loads without torch."""

from pathlib import Path
from typing import Any

from monograph.train.records import parse_record


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
            with self.path.open("rb") as file:
                file.seek(self._offset - len(self._last_line))
                if file.read(len(self._last_line)) != self._last_line:
                    self._records, self._offset, self._last_line = [], 0, b""
                    file.seek(0)
                added = file.read()
        except FileNotFoundError:
            self._records, self._offset, self._last_line = [], 0, b""
            return []
        lines = added[: added.rfind(b"\n") + 1].splitlines(keepends=True)
        if lines:
            self._offset += sum(map(len, lines))
            self._last_line = lines[-1]
        self._records += [record for record in map(parse_record, lines) if record is not None]
        return self._records
