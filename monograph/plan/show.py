"""A plan as a table, as an explanation of its best run, and as JSON."""

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Any

from monograph.config.leaves import find_leaves
from monograph.config.text import format_words
from monograph.plan.axes import AXES, Candidate
from monograph.plan.search import PlannedRun, PlanResult
from monograph.report.units import format_bytes, format_seconds
from monograph.train.config import TrainerConfig

HEADS = ("", "mesh", "batch", "saves", "tokens/s", "MFU", "needs", "limited by")


def make_rows(runs: Sequence[PlannedRun]) -> list[tuple[str, ...]]:
    """One row for each run."""
    return [
        (
            f"{number}.",
            name_mesh(run.candidate),
            f"{run.candidate.sequences} x {run.candidate.micro_batches}",
            name_policy(run.candidate),
            f"{run.tokens_per_second:,.0f}",
            f"{100 * run.mfu:.1f} %",
            format_bytes(run.needed_bytes),
            run.limit,
        )
        for number, run in enumerate(runs, 1)
    ]


def name_mesh(candidate: Candidate) -> str:
    """The degrees that are not one."""
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
    degrees = [f"{name} {getattr(candidate.mesh, name)}" for name in names if getattr(candidate.mesh, name) > 1]
    return ", ".join(degrees) or "one device"


def name_policy(candidate: Candidate) -> str:
    """What is saved for backward, and whether gathered weights are kept."""
    return candidate.policy + ("" if candidate.reshard else ", gathered weights")


def make_command(run: PlannedRun, base: TrainerConfig, words: Sequence[str], *, ranks: int) -> str:
    """The line that trains so: the recipe's words and every field that the plan chose otherwise."""
    before = {leaf.path: leaf.value for leaf in find_leaves(base)}
    kept = list(words)
    flags: list[str] = []
    for leaf in find_leaves(run.candidate.config):
        if before.get(leaf.path) != leaf.value and f"--{leaf.path}" not in kept:
            flags += [f"--{leaf.path}", format_words(leaf.value) or str(leaf.value)]
    line = shlex.join([*kept, *flags])
    per_node = run.machine.devices_per_node
    if ranks == 1:
        return f"monograph train {line}"
    if ranks <= per_node:
        return f"monograph train {line} --ranks {ranks}"
    nodes = -(-ranks // per_node)
    meeting = "--rdzv_backend c10d --rdzv_endpoint HOST:29500"
    return f"torchrun --nnodes {nodes} --nproc_per_node {ranks // nodes} {meeting} -m monograph train {line}"


def explain_run(run: PlannedRun) -> list[str]:
    """Where the time and the memory of one run go."""
    step, memory, candidate = run.step, run.step.memory, run.candidate
    update = run.update_seconds
    times = {"compute": candidate.micro_batches * step.compute_seconds}
    waits = sorted(step.exposed_seconds.items(), key=lambda each: -each[1])
    times |= {f"waiting for {group}": candidate.micro_batches * seconds for group, seconds in waits}
    times |= {"pipeline bubble": run.bubble_seconds, "gradient norm and optimizer": step.optimizer_seconds}
    hidden = candidate.micro_batches * (step.communication_seconds - sum(step.exposed_seconds.values()))
    lines = [
        f"{name_mesh(candidate)}: one update of {run.tokens:,} tokens takes {format_seconds(update)}",
        *(f"  {100 * each / update:5.1f} %  {format_seconds(each):>8}  {name}" for name, each in times.items() if each),
        f"  {'':7}  {format_seconds(hidden):>8}  of collectives behind compute",
        f"{format_bytes(run.needed_bytes)} of {format_bytes(run.machine.memory_bytes)} on each device",
    ]
    names = [each.name for each in dataclasses.fields(memory) if each.name != "most_saved"]
    parts = {name: float(getattr(memory, name)) for name in names}
    parts["fragments, context, communicators"] = run.needed_bytes - run.peak_bytes
    lines += [
        f"  {100 * size / run.needed_bytes:5.1f} %  {format_bytes(size):>8}  {name}" for name, size in parts.items()
    ]
    return lines


def make_json(result: PlanResult, base: TrainerConfig, words: Sequence[str], gpus: int) -> dict[str, Any]:
    """The plan as data."""
    return {
        "gpus": gpus,
        "machine": dataclasses.asdict(result.runs[0].machine) if result.runs else None,
        "considered": result.considered,
        "not_searched": result.closed,
        "captured_blocks": result.depth.blocks,
        "runs": [
            {
                "mesh": dataclasses.asdict(run.candidate.mesh),
                "local_batch_size": run.candidate.sequences,
                "micro_batches": run.candidate.micro_batches,
                "activation_checkpoint": run.candidate.policy,
                "reshard_after_forward": run.candidate.reshard,
                "tokens_per_second": run.tokens_per_second,
                "mfu": run.mfu,
                "update_seconds": run.update_seconds,
                "bubble_seconds": run.bubble_seconds,
                "peak_bytes": run.peak_bytes,
                "needed_bytes": int(run.needed_bytes),
                "limited_by": run.limit,
                "step": dataclasses.asdict(run.step),
                "command": make_command(run, base, words, ranks=gpus),
            }
            for run in result.runs
        ],
    }


def list_axes(result: PlanResult) -> str:
    """Which degrees were searched, and which were not."""
    open_axes = [axis.short for axis in AXES if axis.short not in result.closed]
    closed = [f"{name} ({reason})" for name, reason in result.closed.items()]
    return f"searched {', '.join(open_axes)}, dp_shard" + (f"; not {'; '.join(closed)}" if closed else "")
