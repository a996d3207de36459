"""Data of the page of a plan: its runs with the time, memory, collectives and command of each."""

import shlex
import string
from collections.abc import Sequence
from typing import Any

from monograph.plan.planned import PlannedRun
from monograph.plan.search import PlanResult
from monograph.plan.show import (
    collective_times,
    compare_to_best,
    explain_bubble,
    explain_offloading,
    list_axes,
    make_command,
    memory_use,
    name_mesh,
    name_numerics,
    name_policy,
    update_times,
)

MAX_MISFITS = 10
MOST_OF_MEMORY = 1.5
"""Runs that do not fit are shown if they need no more than this of the device's memory."""


def collect_plan(result: PlanResult, words: Sequence[str], gpus: int, options: Sequence[str]) -> dict[str, Any]:
    """Everything that the page shows; `options` are the words of the plan command itself."""
    best = result.runs[0]
    runs = [(str(number), "best", run) for number, run in enumerate(result.runs, 1)]
    runs += [(name_numerics(run), "other", run) for run in result.others]
    near = [run for run in result.misfits if run.needed_bytes <= MOST_OF_MEMORY * best.machine.memory_bytes]
    misfits = sorted(near, key=lambda run: -run.tokens_per_second)[:MAX_MISFITS]
    runs += [(letter, "misfit", run) for letter, run in zip(string.ascii_lowercase, misfits, strict=False)]
    return {
        "title": f"{' '.join(words[:1])} on {gpus} x {best.machine.name}",
        "command": f"monograph plan {shlex.join([*words, *options])}",
        "memory_bytes": best.machine.memory_bytes,
        "machine": best.machine.describe(),
        "considered": result.considered,
        "captured": result.captured,
        "axes": list_axes(result),
        "runs": [{"label": label, "kind": kind} | collect_run(run, best, words) for label, kind, run in runs],
    }


def collect_run(run: PlannedRun, best: PlannedRun, words: Sequence[str]) -> dict[str, Any]:
    """One run: its row of the table, and what is shown when the row is opened."""
    choice = run.choice
    return {
        "mesh": name_mesh(run),
        "batch": f"{choice.sequences} x {choice.micro_batches}",
        "saves": name_policy(run),
        "tokens_per_second": run.tokens_per_second,
        "mfu": run.mfu,
        "needed_bytes": run.needed_bytes,
        "bubble": run.bubble if choice.mesh.pp > 1 else None,
        "limit": run.limit,
        "tokens": run.tokens,
        "update_seconds": run.update_seconds,
        "times": list(update_times(run).items()),
        "memory": list(memory_use(run).items()),
        "collectives": collective_times(run),
        "notes": [text for text in (explain_bubble(run), *explain_offloading(run)) if text],
        "compared": "" if run is best else compare_to_best(run, best),
        "command": make_command(run, words),
    }
