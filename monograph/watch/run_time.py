"""Where a run's time went, and when it was started again: from goodput.jsonl, or from metrics.jsonl alone. Loads
without torch."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monograph.train.goodput import KINDS, GoodputSummary, is_measured, read_events, summarize
from monograph.train.records import find_number


def collect_time(folder: Path, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`goodput` (None where nothing was measured) and `restarts`: the steps after which a process took over."""
    found = summarize(folder, records)
    if found is None:
        processes = split_processes(records)
        found = sum_processes(processes) if processes else None
        restarts = [{"step": process[-1]["step"], "ranks": None} for process in processes[:-1]]
    else:
        starts = [event for event in read_events(folder) if event["event"] == "start"]
        restarts = [{"step": event["step"], "ranks": find_number(event.get("ranks"))} for event in starts[1:]]
    if found is None:
        return {"goodput": None, "restarts": restarts}
    parts = [[name, seconds] for name, seconds in found.rows() if seconds > 0]
    goodput = {"share": found.goodput, "seconds": found.total_seconds, "parts": parts, "lost_steps": found.lost_steps}
    return {"goodput": goodput, "restarts": restarts}


def split_processes(records: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The records of each process, told apart by its clock, which begins anew."""
    timed = [record for record in records if is_measured(record)]
    seconds = [sum(record["goodput"].values()) for record in timed]
    begins = [0, *(index for index, (a, b) in enumerate(itertools.pairwise(seconds), 1) if b < a), len(timed)]
    return [timed[start:end] for start, end in itertools.pairwise(begins) if end > start]


def sum_processes(processes: Sequence[Sequence[dict[str, Any]]]) -> GoodputSummary:
    """The time of all processes, as their last records tell it; what lay between them is not known."""
    spent = [process[-1]["goodput"] for process in processes]
    seconds = {kind: sum(each.get(kind, 0.0) for each in spent) for kind in KINDS}
    return GoodputSummary(
        starts=len(processes),
        last_step=processes[-1][-1]["step"],
        total_seconds=sum(seconds.values()),
        seconds=seconds,
    )
