"""The lines of metrics.jsonl: strict JSON, one record each, read back as they were measured. Loads without torch."""

import os
from pathlib import Path
from typing import Any

from monograph import strict_json
from monograph.system.foreign_json import parse_json, read_file
from monograph.system.own_file import open_own
from monograph.whole_file import write_whole

MAX_BYTES = 8 << 30
"""Size of the largest metrics.jsonl that is read: millions of steps."""
_MAX_STEP = 1 << 53
"""Beyond it not every number is one for a browser."""
_MAX_NUMBER = 1e100
"""Of a measured value; sums of such values are finite."""


def read_records(path: Path) -> list[dict[str, Any]]:
    """Every whole record of a file, NaN and infinities as floats; what a killed run left of a line is passed over."""
    records = [parse_record(line) for line in read_file(path, max_bytes=MAX_BYTES).split(b"\n")]
    return [record for record in records if record is not None]


def parse_record(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None when it is not a whole one."""
    try:
        record = strict_json.restore(parse_json(line, "a record", kind=dict, allow_nan=True))
        return record if _find_step(record) is not None else None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def find_number(value: Any) -> float | None:
    """The value if it is a finite number; None for text, truth values, lists and numbers that nothing measures."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < _MAX_NUMBER else None


def drop_later_records(path: Path, step: int) -> None:
    """Keep the whole records up to `step`; later ones belong to a run that did not last.

    They are the end of the file, which is shortened: that needs no space. Anything else is written anew.
    """
    content = read_file(path, max_bytes=MAX_BYTES)
    kept: list[bytes] = []
    size, is_prefix = 0, True
    for line in content.splitlines(keepends=True):
        record = parse_record(line)
        if record is None or record["step"] > step:
            continue
        strict = _make_strict(line, record)
        is_prefix = is_prefix and content.startswith(strict, size)
        kept.append(strict)
        size += len(strict)
    if not is_prefix:
        write_whole(path, b"".join(kept).decode())
    elif size < len(content):
        file = open_own(path, os.O_WRONLY)
        try:
            os.ftruncate(file, size)
        finally:
            os.close(file)


def _make_strict(line: bytes, record: dict[str, Any]) -> bytes:
    """The line as it is, or as strict JSON where an earlier version wrote a bare NaN; always with its end."""
    try:
        strict_json.parse(line)
    except ValueError:
        return strict_json.dump(record).encode() + b"\n"
    return line if line.endswith(b"\n") else line + b"\n"


def _find_step(record: dict[str, Any]) -> int | None:
    step = record.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) and abs(step) <= _MAX_STEP else None
