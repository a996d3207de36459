"""What the page of runs shows, read from their folders alone: also of a run that was killed. Loads without torch."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monograph.locks.folder_lock import LOCK_NAME
from monograph.locks.holder import parse_holder
from monograph.parallel.pipeline.schedule import BUBBLE
from monograph.watch.record_tail import RecordTail
from monograph.watch.run_time import collect_time

MAX_POINTS = 1500
"""Of a curve: no more than a screen shows."""
_MAX_COLUMNS = 160
_MAX_WARNINGS = 50
_LOG_BYTES = 1 << 18
"""The end of a log in which warnings are looked for."""
_CURVES = ("loss", "grad_norm", "lr", "tokens_per_second", "mfu", "peak_memory_gib", "ms", "validation_loss")


class RunReader:
    """One run's folder, read again and again."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self.folder, self.name = folder, name or folder.resolve().name
        self._tail = RecordTail(folder / "metrics.jsonl")

    def collect(self, *, is_over: bool = False) -> dict[str, Any]:
        """Curves, state, restarts, checkpoints, warnings, and where the time went; `is_over` says that the process that
        holds the folder trains no more."""
        records = self._tail.read()
        steps = [record for record in records if "loss" in record]
        wanted = read_steps(self.folder)
        last = steps[-1] if steps else None
        shown = (
            {name: _finite(last.get(name)) for name in ("step", "loss", "tokens_per_second", "time")} if last else None
        )
        return {
            "name": self.name,
            "state": find_state(self.folder, last, wanted, is_over=is_over),
            "steps": wanted,
            "last": shown,
            "seconds_left": estimate_seconds_left(steps, wanted),
            "curves": {name: thin_out(records, name) for name in _CURVES},
            "expert_load": collect_load(steps),
            "bubble": collect_bubble(steps),
            **collect_time(self.folder, records),
            "checkpoints": find_checkpoints(self.folder),
            "warnings": read_warnings(self.folder),
        }


def make_readers(folders: Sequence[Path]) -> list[RunReader]:
    """One reader for each folder, with names that differ: as many of the last parts of a path as that takes."""
    paths = [folder.resolve() for folder in folders]
    depth = 1
    while depth < max(len(path.parts) for path in paths) and len({path.parts[-depth:] for path in paths}) < len(
        set(paths)
    ):
        depth += 1
    return [RunReader(path, "/".join(path.parts[-depth:])) for path in paths]


def collect_runs(readers: Sequence[RunReader], *, is_live: bool, is_over: bool = False) -> dict[str, Any]:
    """All runs, for the page."""
    note = "Read from metrics.jsonl every two seconds" if is_live else "Read from metrics.jsonl for this file"
    note += f"; as of {time.strftime('%Y-%m-%d %H:%M:%S')}."
    return {"runs": [reader.collect(is_over=is_over) for reader in readers], "is_live": is_live, "note": note}


def read_steps(folder: Path) -> int:
    """How many steps the run was to make; 0 where its configuration does not say."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))["training"]["steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return found if isinstance(found, int) else 0


def find_state(folder: Path, last: dict[str, Any] | None, wanted: int, *, is_over: bool = False) -> str:
    """running: a process holds the folder; finished: the last step is there; else it ended before that, or, where the
    number of steps is not known, it just ended."""
    try:
        holder = parse_holder((folder / LOCK_NAME).read_bytes())
    except OSError:
        holder = None
    if not is_over and holder is not None and (holder.is_alive if holder.is_here else True):
        return "running"
    if last is None:
        return "not started"
    if not wanted:
        return "ended"
    return "finished" if last["step"] >= wanted else "ended early"


def estimate_seconds_left(steps: Sequence[dict[str, Any]], wanted: int) -> float | None:
    """By the time that the last steps took, everything between them included; None where that is not known."""
    recent = [record for record in steps[-50:] if isinstance(record.get("time"), int | float)]
    if not wanted or len(recent) < 2 or recent[-1]["step"] <= recent[0]["step"]:
        return None
    pace = (recent[-1]["time"] - recent[0]["time"]) / (recent[-1]["step"] - recent[0]["step"])
    return max(0.0, pace * (wanted - recent[-1]["step"]))


def thin_out(records: Sequence[dict[str, Any]], name: str) -> list[list[float]]:
    """At most MAX_POINTS points [step, value] and the last: of each stretch the lowest and the highest, so that a
    spike of one step stays."""
    pairs = [(record["step"], _finite(record.get(name))) for record in records]
    points = [[step, value] for step, value in pairs if value is not None]
    if len(points) <= MAX_POINTS:
        return points
    stretch = -(-len(points) // (MAX_POINTS // 2))
    chosen: list[list[float]] = []
    for start in range(0, len(points), stretch):
        part = range(start, min(start + stretch, len(points)))
        lowest, highest = (choose(part, key=lambda index: points[index][1]) for choose in (min, max))
        chosen += [points[index] for index in sorted({lowest, highest})]
    return chosen if chosen[-1] == points[-1] else [*chosen, points[-1]]


def collect_load(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The busiest expert of every MoE layer over the mean, step by step."""
    with_load = [record for record in steps if isinstance(record.get("expert_load"), dict)]
    return collect_rows([(record["step"], record["expert_load"]["max_over_mean"]) for record in with_load])


def collect_bubble(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The part of every update in which a pipeline rank computed nothing, rank by rank."""
    return collect_rows([(each["step"], each[BUBBLE]) for each in steps if isinstance(each.get(BUBBLE), list)])


def collect_rows(columns: Sequence[tuple[int, list[float]]]) -> dict[str, Any]:
    """A list of numbers for every step, of as many steps as a screen shows."""
    chosen = columns[:: max(1, -(-len(columns) // _MAX_COLUMNS))]
    return {
        "steps": [step for step, _ in chosen],
        "values": [values for _, values in chosen],
        "rows": len(chosen[0][1]) if chosen else 0,
    }


def find_checkpoints(folder: Path) -> list[int]:
    """The steps of the checkpoints that are there."""
    names = [each.name.removeprefix("step-") for each in (folder / "checkpoints").glob("step-*") if each.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal())


def read_warnings(folder: Path) -> list[str]:
    """The last warnings and errors that rank 0 logged."""
    try:
        with (folder / "logs" / "rank-0.log").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line[:400] for line in lines if " W " in line[:40] or " E " in line[:40]][-_MAX_WARNINGS:]


def _finite(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < float("inf") else None
