"""What the page of runs shows, read from their folders alone: also of a run that was killed. Loads without torch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monograph.locks.folder_lock import LOCK_NAME
from monograph.locks.holder import parse_holder
from monograph.parallel.pipeline.schedule import BUBBLE
from monograph.train.goodput import KINDS
from monograph.train.records import read_records

MAX_POINTS = 1500
"""Of a curve: no more than a screen shows."""
_MAX_COLUMNS = 160
_MAX_WARNINGS = 50
_CURVES = ("loss", "grad_norm", "lr", "tokens_per_second", "mfu", "peak_memory_gib", "ms", "validation_loss")


def collect_runs(folders: Sequence[Path], *, is_live: bool) -> dict[str, Any]:
    """All runs, for the page."""
    note = "read from metrics.jsonl every two seconds" if is_live else "read from metrics.jsonl once, for this file"
    return {"runs": [collect_run(folder) for folder in folders], "is_live": is_live, "note": note}


def collect_run(folder: Path) -> dict[str, Any]:
    """One run: its curves, state, checkpoints, warnings, and where its time went."""
    path = folder / "metrics.jsonl"
    records = read_records(path) if path.exists() else []
    steps = [record for record in records if "loss" in record]
    wanted = read_steps(folder)
    last = steps[-1] if steps else None
    shown = {name: _finite(last.get(name)) for name in ("step", "loss", "tokens_per_second")} if last else None
    goodput = last.get("goodput", {}) if last else {}
    phases = [[kind, goodput[kind]] for kind in KINDS if isinstance(goodput.get(kind), int | float)]
    return {
        "name": folder.resolve().name,
        "state": find_state(folder, last, wanted),
        "steps": wanted,
        "last": shown,
        "curves": {name: thin_out(records, name) for name in _CURVES},
        "expert_load": collect_load(steps),
        "bubble": collect_bubble(steps),
        "phases": phases,
        "checkpoints": sorted(each.name for each in (folder / "checkpoints").glob("step-*") if each.is_dir()),
        "warnings": read_warnings(folder),
    }


def read_steps(folder: Path) -> int:
    """How many steps the run was to make; 0 where its configuration does not say."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))["training"]["steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return found if isinstance(found, int) else 0


def find_state(folder: Path, last: dict[str, Any] | None, wanted: int) -> str:
    """running: a process holds the folder; finished: the last step is there; else it ended before that."""
    try:
        holder = parse_holder((folder / LOCK_NAME).read_bytes())
    except OSError:
        holder = None
    if holder is not None and (holder.is_alive if holder.is_here else True):
        return "running"
    if last is not None and wanted and last["step"] >= wanted:
        return "finished"
    return "ended early" if last is not None else "not started"


def thin_out(records: Sequence[dict[str, Any]], name: str) -> list[list[float | None]]:
    """At most MAX_POINTS points [step, value]: the first of each stretch, and the last of all."""
    points = [[record["step"], _finite(record[name])] for record in records if record.get(name) is not None]
    stretch = -(-len(points) // MAX_POINTS)
    return [points[index] for index in range(0, len(points), max(1, stretch))] + (points[-1:] if stretch > 1 else [])


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


def read_warnings(folder: Path) -> list[str]:
    """The last warnings and errors that rank 0 logged."""
    path = folder / "logs" / "rank-0.log"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line[:400] for line in lines if " W " in line[:40] or " E " in line[:40]][-_MAX_WARNINGS:]


def _finite(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) < float("inf") else None
