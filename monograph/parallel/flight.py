"""What each rank's collectives were doing when a run failed: torch's flight recorder, collected in the run's folder.

A rank that fails writes its own report. NCCL's watchdog, which ends a process without asking Python, writes another
(a pickle, which nothing here loads: `python -m torch.distributed.flight_recorder.fr_trace` reads it). A rank that was
killed or stopped writes none, and is found by that.
"""

import os
import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monograph import strict_json
from monograph.compat.flight import dump_trace
from monograph.errors import MonographError
from monograph.log import get_log
from monograph.system.foreign_json import UnusableFile, read_json
from monograph.system.foreign_text import show
from monograph.whole_file import write_whole

log = get_log("flight")
FOLDER = Path("logs") / "flight"
"""Below the run's folder."""
SETTINGS = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "15000",
}
"""Collectives that are remembered; NCCL's watchdog writes them down on a timeout, waits for that, and ends the process
without destroying communicators first, which could hang. What the user has set stays."""
SHOWN = 8
_BROKEN = ("gloo", "NCCL", "Connection closed", "Timed out")
"""Words in the errors of a collective that failed."""
_MAX_BYTES, _MAX_RANKS = 16 << 20, 1 << 20
_KEPT = 64
"""Collectives of a report: the last ones say what hung."""


def set_up_flight(folder: Path | None) -> None:
    """Let torch remember collectives, before the first group exists."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if folder is not None:
        os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / "nccl-rank-"))


def make_flight_folder(folder: Path, rank: int) -> None:
    """Make room for reports once the run's folder is ours; this rank's report of an earlier failure is removed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _find_path(folder, rank).unlink(missing_ok=True)
    except OSError as error:
        log.debug("no reports of collectives can be written to %s: %s", folder, error)


def write_flight(folder: Path | None, rank: int, world_size: int, error: BaseException) -> None:
    """Write this rank's report; never raises, because another error is on its way."""
    if folder is None or world_size == 1 or isinstance(error, MonographError) or not folder.is_dir():
        return
    try:
        entries = [_shorten(entry) for entry in dump_trace()["entries"][-_KEPT:]]
        report = {
            "rank": rank,
            "world_size": world_size,
            "host": socket.gethostname(),
            "time": time.time(),
            "error": f"{type(error).__name__}: {error}".splitlines()[0],
            "is_broken": isinstance(error, RuntimeError) and any(word in str(error) for word in _BROKEN),
            "where": list(getattr(error, "__notes__", [])),
            "collectives": entries,
        }
        write_whole(_find_path(folder, rank), strict_json.dump(report, indent=1) + "\n")
    except Exception as problem:
        log.warning("rank %d: what its collectives were doing could not be written: %s", rank, problem)


def _find_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def _shorten(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "group": entry["process_group"][1],
        "name": entry["profiling_name"],
        "number": entry["collective_seq_id"],
        "sizes": entry["input_sizes"],
        "is_done": bool(entry["retired"]),
    }


def read_flights(folder: Path, *, since: float = 0.0) -> dict[int, dict[str, Any]]:
    """The reports of all ranks that wrote one after `since`, by rank."""
    found = {}
    for path in folder.glob("rank-*.json"):
        try:
            report = read_json(path, max_bytes=_MAX_BYTES)
        except (OSError, UnusableFile):
            continue
        if _is_report(report) and report["time"] >= since:
            found[report["rank"]] = report
    return dict(sorted(found.items()))


def _is_report(report: Mapping[str, Any]) -> bool:
    """Whether it has what the summary needs: a run's folder may come from anywhere."""
    kinds = {"rank": int, "world_size": int, "host": str, "error": str, "is_broken": bool, "where": list}
    if not all(type(report.get(name)) is kind for name, kind in kinds.items()):
        return False
    if type(report.get("time")) not in (int, float) or not 0 <= report["rank"] < report["world_size"] <= _MAX_RANKS:
        return False
    entries = report.get("collectives")
    needed = {"group": str, "name": str, "number": int, "is_done": bool, "sizes": list}
    return isinstance(entries, list) and all(
        isinstance(entry, dict) and all(type(entry.get(name)) is kind for name, kind in needed.items())
        for entry in entries
    )


def describe_flights(folder: Path, *, since: float = 0.0) -> list[str]:
    """What hung, in words: who waits where, who wrote no report, who is behind; nothing without reports."""
    reports = read_flights(folder, since=since)
    if not reports:
        return []
    world_size = next(iter(reports.values()))["world_size"]
    silent = [rank for rank in range(world_size) if rank not in reports]
    lines = []
    if silent:
        names = ", ".join(map(str, silent[:SHOWN])) + (", ..." if len(silent) > SHOWN else "")
        lines.append(f"rank {names} left no report: it was stopped or killed, or its machine is gone")
    for rank, report in list(reports.items())[:SHOWN]:
        lines.append(f"rank {rank} ({report['host']}) {_describe_wait(report)}")
    lines += [] if silent else _find_behind(reports)
    lines = [show(line) for line in lines]
    return [*lines, f"reports of {len(reports)} ranks are in {folder}"]


def _describe_wait(report: dict[str, Any]) -> str:
    waiting = [each for each in report["collectives"] if not each["is_done"]]
    if report["is_broken"]:  # gloo counts a collective that failed as done
        waiting = waiting or report["collectives"][-1:]
    where = f", {report['where'][0]}" if report["where"] else ""
    if not waiting:
        return f"was in no collective: {report['error']}{where}"
    first = waiting[0]
    return f"waited in {first['name']} number {first['number']} over {first['group']}, sizes {first['sizes']}{where}"


def _find_behind(reports: dict[int, dict[str, Any]]) -> Sequence[str]:
    """Ranks that have started fewer collectives of a group than others have."""
    started: dict[str, dict[int, int]] = defaultdict(dict)
    for rank, report in reports.items():
        for each in report["collectives"]:
            started[each["group"]][rank] = max(each["number"], started[each["group"]].get(rank, 0))
    worst = [
        (max(numbers.values()) - number, rank, group)
        for group, numbers in started.items()
        for rank, number in numbers.items()
    ]
    missing, rank, group = max(worst, default=(0, 0, ""))
    return [f"rank {rank} is behind: {missing} collectives over {group} fewer than others"] if missing else []
