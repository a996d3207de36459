"""What the page of runs shows, read from their folders alone: also of a run that was killed. Loads without torch."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from monograph.locks.folder_lock import LOCK_NAME
from monograph.locks.holder import parse_holder
from monograph.parallel.pipeline.schedule import BUBBLE
from monograph.system.foreign_json import UnusableFile, open_regular, read_file, read_json
from monograph.system.foreign_text import show
from monograph.train.records import find_number
from monograph.watch.config_diff import compare_settings, read_settings
from monograph.watch.divergence import DivergenceReader, is_diverged_now
from monograph.watch.record_tail import RecordTail
from monograph.watch.run_time import collect_time

MAX_POINTS = 1500
"""Of a curve: no more than a screen shows."""
_MAX_COLUMNS, _MAX_ROWS = 160, 1024
_MAX_WARNINGS = 50
_LOG_BYTES = 1 << 18
"""The end of a log in which warnings are looked for."""
_LOCK_BYTES = 1 << 16
_MAX_STEPS = 1 << 53
_MAX_TIME = 1e11
"""Of a clock; later times are none for a browser."""
_CURVES = ("loss", "grad_norm", "lr", "tokens_per_second", "mfu", "peak_memory_gib", "ms", "validation_loss")


class RunReader:
    """One run's folder, read again and again."""

    def __init__(self, folder: Path, name: str = "") -> None:
        self.folder, self.name = folder, name or folder.resolve().name
        self._tail = RecordTail(folder / "metrics.jsonl")
        self._divergence = DivergenceReader()

    def collect(self, *, is_over: bool = False) -> dict[str, Any]:
        """Curves, state, restarts, checkpoints, warnings, and where the time went; `is_over` says that the process that
        holds the folder trains no more."""
        problems: list[str] = []
        records = _collect(problems, self._tail.read, [])
        steps = [record for record in records if "loss" in record]
        wanted = _collect(problems, lambda: read_steps(self.folder), 0)
        last = steps[-1] if steps else None
        diverged = self._divergence.read(records)
        left = estimate_seconds_left(steps, wanted)
        shown = (
            {name: find_number(last.get(name)) for name in ("step", "loss", "tokens_per_second", "time")}
            if last
            else None
        )
        return {
            "name": self.name,
            "state": find_state(self.folder, last, wanted, is_over=is_over),
            "steps": wanted,
            "last": shown,
            "seconds_left": left,
            "ends_at": estimate_end(shown, left),
            "step_range": [choose(record["step"] for record in records) for choose in (min, max)] if records else None,
            "diverged": diverged,
            "is_diverged": last is not None and is_diverged_now(diverged, last["step"]),
            "curves": {name: thin_out(records, name) for name in _CURVES},
            "expert_load": collect_load(steps),
            "bubble": collect_bubble(steps),
            **_collect(problems, lambda: collect_time(self.folder, records), {"goodput": None, "restarts": []}),
            "checkpoints": _collect(problems, lambda: find_checkpoints(self.folder), []),
            "warnings": _collect(problems, lambda: read_warnings(self.folder), []) + problems,
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
    runs = [reader.collect(is_over=is_over) for reader in readers]
    problems: list[str] = []  # each run's own warnings name a config.json that cannot be read
    settings = [_collect(problems, partial(read_settings, reader.folder), {}) for reader in readers]
    return {"runs": runs, "settings": compare_settings(settings), "is_live": is_live, "note": note}


def read_steps(folder: Path) -> int:
    """How many steps the run was to make; 0 where its configuration does not say."""
    try:
        training = read_json(folder / "config.json").get("training")
    except FileNotFoundError:
        return 0
    steps = training.get("steps") if isinstance(training, dict) else None
    return steps if type(steps) is int and 0 < steps <= _MAX_STEPS else 0


def find_state(folder: Path, last: dict[str, Any] | None, wanted: int, *, is_over: bool = False) -> str:
    """running: a process holds the folder; finished: the last step is there; else it ended before that, or, where the
    number of steps is not known, it just ended."""
    try:
        holder = parse_holder(read_file(folder / LOCK_NAME, max_bytes=_LOCK_BYTES))
    except (OSError, UnusableFile):
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
    recent = [record for record in steps[-50:] if find_number(record.get("time")) is not None]
    if not wanted or len(recent) < 2 or recent[-1]["step"] <= recent[0]["step"]:
        return None
    pace = (recent[-1]["time"] - recent[0]["time"]) / (recent[-1]["step"] - recent[0]["step"])
    return max(0.0, pace * (wanted - recent[-1]["step"]))


def estimate_end(last: Mapping[str, Any] | None, seconds_left: float | None) -> float | None:
    """Unix time at which the run should end; None where its last record has no such time."""
    written = last["time"] if last is not None else None
    if written is None or seconds_left is None or not 0 <= written < _MAX_TIME:
        return None
    return min(float(written + seconds_left), _MAX_TIME)


def thin_out(records: Sequence[dict[str, Any]], name: str) -> list[list[float]]:
    """At most MAX_POINTS points [step, value] and the last: of each stretch the lowest and the highest, so that a
    spike of one step stays."""
    pairs = [(record["step"], find_number(record.get(name))) for record in records]
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
    return collect_rows([(record["step"], record["expert_load"].get("max_over_mean")) for record in with_load])


def collect_bubble(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The part of every update in which a pipeline rank computed nothing, rank by rank."""
    return collect_rows([(record["step"], record[BUBBLE]) for record in steps if BUBBLE in record])


def collect_rows(columns: Sequence[tuple[int, Any]]) -> dict[str, Any]:
    """A list of finite numbers for every step, of as many steps as a screen shows and equally long; others are left
    out."""
    rows = [(step, values) for step, values in columns if _is_row(values)]
    rows = [(step, values) for step, values in rows if len(values) == len(rows[-1][1])]
    chosen = rows[:: max(1, -(-len(rows) // _MAX_COLUMNS))]
    return {
        "steps": [step for step, _ in chosen],
        "values": [values for _, values in chosen],
        "rows": len(chosen[0][1]) if chosen else 0,
    }


def find_checkpoints(folder: Path) -> list[int]:
    """The steps of the checkpoints that are there."""
    names = [each.name.removeprefix("step-") for each in (folder / "checkpoints").glob("step-*") if each.is_dir()]
    return sorted(step for name in names if name.isdecimal() and (step := int(name)) <= _MAX_STEPS)


def read_warnings(folder: Path) -> list[str]:
    """The last warnings and errors that rank 0 logged."""
    try:
        with open_regular(folder / "logs" / "rank-0.log") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_BYTES))
            lines = file.read(_LOG_BYTES).decode(errors="replace").split("\n")
    except FileNotFoundError:
        return []
    return [line[:400] for line in lines if " W " in line[:40] or " E " in line[:40]][-_MAX_WARNINGS:]


def _is_row(values: Any) -> bool:
    return (
        isinstance(values, list)
        and 0 < len(values) <= _MAX_ROWS
        and all(find_number(value) is not None for value in values)
    )


def _collect(problems: list[str], read: Callable[[], Any], otherwise: Any) -> Any:
    """A part of the page; a file that cannot be read is named on the page, and the other parts are still shown."""
    try:
        return read()
    except UnusableFile as error:
        problems.append(f"{error.what}: {error.why}")
    except OSError as error:
        problems.append(f"cannot read {show(error.filename)}: {error.strerror}")
    return otherwise
