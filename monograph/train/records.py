"""The lines of metrics.jsonl: strict JSON, one record each, read back as they were measured. Loads without torch."""

import json
import math
import os
from pathlib import Path
from typing import Any

from monograph import strict_json
from monograph.whole_file import write_whole


def read_records(path: Path) -> list[dict[str, Any]]:
    """Every whole record of a file, NaN and infinities as floats; what a killed run left of a line is passed over."""
    records = [parse_record(line) for line in path.read_bytes().split(b"\n")]
    return [record for record in records if record is not None]


def parse_record(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None when it is not a whole one."""
    try:
        record = json.loads(line)
        return strict_json.restore(record) if isinstance(record, dict) and _find_step(record) is not None else None
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def drop_later_records(path: Path, step: int) -> None:
    """Keep the whole records up to `step`; later ones belong to a run that did not last.

    They are the end of the file, which is shortened: that needs no space. Anything else is written anew.
    """
    content = path.read_bytes()
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
        os.truncate(path, size)


def _make_strict(line: bytes, record: dict[str, Any]) -> bytes:
    """The line as it is, or as strict JSON where an earlier version wrote a bare NaN; always with its end."""
    try:
        strict_json.parse(line)
    except ValueError:
        return strict_json.dump(record).encode() + b"\n"
    return line if line.endswith(b"\n") else line + b"\n"


def _find_step(record: dict[str, Any]) -> float | None:
    step = record.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) and math.isfinite(step) else None
