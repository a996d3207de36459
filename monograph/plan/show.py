"""A plan as a table, as an explanation of its best run, as JSON, and as the data of its page."""

import dataclasses
import shlex
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from monograph.config.leaves import find_leaves
from monograph.config.text import format_words
from monograph.plan.axes import AXES
from monograph.plan.planned import PlannedRun
from monograph.plan.search import PlanResult
from monograph.report.units import format_bytes, format_seconds
from monograph.train.command_line import drop_flags

HEADS = ("", "mesh", "batch", "saves", "tokens/s", "MFU", "needs", "bubble", "limited by")
_COMPARED = 3
"""Parts of the time that are named where two runs are compared."""


def make_rows(runs: Sequence[PlannedRun]) -> list[tuple[str, ...]]:
    """One row for each run."""
    return [
        (
            f"{number}.",
            name_mesh(run),
            f"{run.choice.sequences} x {run.choice.micro_batches}",
            name_policy(run),
            f"{run.tokens_per_second:,.0f}",
            f"{100 * run.mfu:.1f} %",
            format_bytes(run.needed_bytes),
            f"{100 * run.bubble:.1f} %" if run.choice.mesh.pp > 1 else "",
            run.limit,
        )
        for number, run in enumerate(runs, 1)
    ]


def make_other_rows(runs: Sequence[PlannedRun], best: PlannedRun) -> list[tuple[str, ...]]:
    """The rows of runs with other numerics, with what is different about each in the place of its number."""
    rows = []
    for row, run in zip(make_rows(runs), runs, strict=True):
        gain = run.tokens_per_second / best.tokens_per_second - 1
        rows.append((f"{name_numerics(run)} ({100 * gain:+.0f} %)", *row[1:]))
    return rows


def name_numerics(run: PlannedRun) -> str:
    """What makes its results differ from those of the recipe."""
    choice = run.choice
    other = f"numerics {choice.numerics}" if choice.numerics != run.base.compile.numerics else ""
    chunks = "chunked experts" if choice.overlap and not run.base.compile.expert_overlap.is_on else ""
    return ", ".join(word for word in (other, chunks) if word)


def name_mesh(run: PlannedRun) -> str:
    """The degrees that are not one, the schedule of a pipeline and the method of context parallelism."""
    mesh = run.choice.mesh
    details = {"pp": run.pipeline.schedule, "cp": mesh.cp_method}
    if run.pipeline.schedule == "interleaved_1f1b":
        details["pp"] += f" x {run.pipeline.virtual_stages}"
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
    degrees = [(name, getattr(mesh, name)) for name in names if getattr(mesh, name) > 1]
    found = [f"{name} {degree}" + (f" ({details[name]})" if name in details else "") for name, degree in degrees]
    return ", ".join(found) or "one device"


def name_policy(run: PlannedRun) -> str:
    """What is saved for backward and where, and whether gathered weights are kept."""
    choice = run.choice
    policy = "all" if choice.policy == "none" else choice.policy
    words = [policy, "offloaded" * choice.offload, "chunked experts" * choice.overlap]
    words.append("" if choice.reshard else "weights stay gathered")
    return ", ".join(word for word in words if word)


def make_command(run: PlannedRun, words: Sequence[str]) -> str:
    """The line that trains so: the recipe's words and every field that the plan chose otherwise."""
    ranks, per_node = run.choice.mesh.world_size, run.machine.devices_per_node
    line = add_flags(words, run)
    if ranks == 1:
        return f"monograph train {line}"
    if ranks <= per_node:
        return f"monograph train {line} --ranks {ranks}"
    meeting = "--rdzv_backend c10d --rdzv_endpoint HOST:29500"
    return f"torchrun --nnodes {ranks // per_node} --nproc_per_node {per_node} {meeting} -m monograph train {line}"


def add_flags(words: Sequence[str], run: PlannedRun) -> str:
    """Words of a command, for a shell, with every field that the plan chose otherwise than they do."""
    before = {leaf.path: leaf.value for leaf in find_leaves(run.base)}
    changed = {leaf.path: leaf.value for leaf in find_leaves(run.config) if before.get(leaf.path) != leaf.value}
    flags = [f"--{path} {format_words(value) or shlex.quote('')}" for path, value in changed.items()]
    return " ".join([shlex.join(drop_flags(words, changed)), *flags])


def update_times(run: PlannedRun) -> dict[str, float]:
    """Where the seconds of an update go."""
    step, count = run.step, run.choice.micro_batches
    times = {"compute": count * step.compute_seconds}
    waits = sorted(step.exposed_seconds.items(), key=lambda each: -each[1])
    times |= {f"waiting for {group}": count * seconds for group, seconds in waits}
    times |= {"pipeline bubble": step.bubble_seconds, "gradient norm and optimizer": step.optimizer_seconds}
    return {name: seconds for name, seconds in times.items() if seconds}


def memory_use(run: PlannedRun) -> dict[str, float]:
    """Bytes that each device needs, by what they are for."""
    memory = run.step.memory
    names = [each.name for each in dataclasses.fields(memory) if each.name != "most_saved"]
    parts = {name: float(getattr(memory, name)) for name in names}
    return parts | {"fragments, context, communicators": run.needed_bytes - run.peak_bytes}


def collective_times(run: PlannedRun) -> list[dict[str, Any]]:
    """Seconds of an update in each group's collectives, and for how many of them compute waits; the longest first."""
    count, waits = run.choice.micro_batches, run.step.exposed_seconds
    rows = [
        {"group": group, "seconds": count * seconds, "exposed_seconds": count * waits.get(group, 0.0)}
        for group, seconds in run.step.collective_seconds.items()
    ]
    return sorted(rows, key=lambda row: -row["seconds"])


def explain_bubble(run: PlannedRun) -> str:
    """Why the ranks of a pipeline wait; empty without one.

    The busiest rank waits only while the pipeline fills and drains. Ranks whose stages take less time wait for it in
    addition, which formulas for equal stages do not count.
    """
    if run.choice.mesh.pp == 1:
        return ""
    filling = run.step.bubble_seconds / run.update_seconds
    return (
        f"pipeline bubble, on average over ranks: {100 * run.bubble:.1f} % of an update; {100 * filling:.1f} % while "
        f"the pipeline fills and drains, {100 * (run.bubble - filling):.1f} % because the stages take different times"
    )


def explain_run(run: PlannedRun) -> list[str]:
    """Where the time and the memory of one run go."""
    update = run.update_seconds
    hidden = sum(row["seconds"] - row["exposed_seconds"] for row in collective_times(run))
    return [
        f"{name_mesh(run)}: one update of {run.tokens:,} tokens takes {format_seconds(update)}",
        *(f"  {100 * s / update:5.1f} %  {format_seconds(s):>8}  {name}" for name, s in update_times(run).items()),
        f"  {'':7}  {format_seconds(hidden):>8}  of collectives overlap with compute",
        *([explain_bubble(run)] if run.choice.mesh.pp > 1 else []),
        f"{format_bytes(run.needed_bytes)} of {format_bytes(run.machine.memory_bytes)} on each device",
        *(
            f"  {100 * size / run.needed_bytes:5.1f} %  {format_bytes(size):>8}  {name}"
            for name, size in memory_use(run).items()
        ),
        *explain_offloading(run),
    ]


def explain_offloading(run: PlannedRun) -> list[str]:
    """How much of the host's memory a run uses, if it does."""
    size = run.step.offloaded_bytes
    return [f"{format_bytes(size)} of each micro-batch are offloaded to the host's memory"] if size else []


def compare_runs(runs: Sequence[PlannedRun]) -> list[str]:
    """Why the first is faster than runs on other meshes, a line for each."""
    lines, seen = [], {runs[0].choice.mesh}
    for number, run in enumerate(runs[1:], 2):
        if run.choice.mesh not in seen:
            seen.add(run.choice.mesh)
            lines.append(f"{number}. {name_mesh(run)} takes {compare_to_best(run, runs[0])}")
    return lines


def compare_to_best(run: PlannedRun, best: PlannedRun) -> str:
    """How much longer an update takes than the best run's, and the parts of it that differ most."""
    times, other = update_times(best), update_times(run)
    names = dict.fromkeys([*times, *other])
    more = {name: (other.get(name, 0.0) - times.get(name, 0.0)) / best.update_seconds for name in names}
    largest = sorted(more, key=lambda name: -abs(more[name]))[:_COMPARED]
    parts = ", ".join(f"{name} {100 * more[name]:+.1f} %" for name in largest)
    slower = run.update_seconds / best.update_seconds - 1
    return f"{100 * abs(slower):.1f} % {'longer' if slower >= 0 else 'less'}: {parts}"


def make_json(result: PlanResult, words: Sequence[str], gpus: int) -> dict[str, Any]:
    """The plan as data."""
    return {
        "gpus": gpus,
        "machine": dataclasses.asdict(result.runs[0].machine) if result.runs else None,
        "considered": result.considered,
        "captured": result.captured,
        "not_searched": result.closed,
        "captured_blocks": result.depth.blocks,
        "runs": [describe_run(run, words) for run in result.runs],
        "other_numerics": [{"changes": name_numerics(run)} | describe_run(run, words) for run in result.others],
    }


def describe_run(run: PlannedRun, words: Sequence[str]) -> dict[str, Any]:
    """One run as data."""
    choice = run.choice
    return {
        "mesh": dataclasses.asdict(choice.mesh),
        "pipeline": run.pipeline._asdict() if choice.mesh.pp > 1 else None,
        "local_batch_size": choice.sequences,
        "micro_batches": choice.micro_batches,
        "activation_checkpoint": choice.policy,
        "reshard_after_forward": choice.reshard,
        "offload_activations": choice.offload,
        "expert_overlap": choice.overlap,
        "numerics": choice.numerics,
        "tokens_per_second": run.tokens_per_second,
        "mfu": run.mfu,
        "update_seconds": run.update_seconds,
        "bubble_seconds": run.step.bubble_seconds,
        "peak_bytes": run.peak_bytes,
        "needed_bytes": int(run.needed_bytes),
        "limited_by": run.limit,
        "step": dataclasses.asdict(run.step),
        "command": make_command(run, words),
    }


def list_axes(result: PlanResult) -> str:
    """Degrees that were searched, and those that were not, by reason."""
    open_axes = [axis.short for axis in AXES if axis.short not in result.closed]
    names = defaultdict(list)
    for name, reason in result.closed.items():
        names[reason].append(name)
    closed = "".join(f"; not searched: {', '.join(axes)} ({reason})" for reason, axes in names.items())
    return f"searched {', '.join(open_axes)}, dp_shard{closed}"
