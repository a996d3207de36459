"""`monograph plan`: will it fit, how fast, on which mesh."""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from monograph import strict_json
from monograph.commands.sizes import parse_bytes
from monograph.commands.terminal import make_console, print_plain, print_rows, print_title
from monograph.config.leaves import find_leaves
from monograph.config.origins import Origin
from monograph.errors import MonographError
from monograph.machine.choose import AUTO, FALLBACK, find_machine
from monograph.plan.search import PlannedRun, search
from monograph.plan.show import HEADS, explain_run, list_axes, make_command, make_json, make_rows, name_mesh
from monograph.report.units import format_bytes, format_seconds
from monograph.train.config import TrainerConfig
from monograph.whole_file import write_whole


class NothingFits(MonographError):
    """No candidate fits into the memory."""

    exit_code = 1


def plan(
    config: TrainerConfig,
    *,
    gpus: int,
    memory: str,
    explain: bool,
    json: str,
    top: int,
    words: list[str],
    origins: Mapping[str, Origin],
) -> int:
    """Search, then print the best ten, what limits each, and how to run them."""
    start = time.perf_counter()
    machine = find_machine(FALLBACK if config.machine == AUTO else config.machine)
    if memory:
        machine = replace(machine, memory_gb=parse_bytes(memory) / 1e9)
    values = {leaf.path: leaf.value for leaf in find_leaves(config)}
    fixed = {path: values[path] for path, origin in origins.items() if origin == "flag" and path in values}
    jobs = min(2, os.cpu_count() or 1) if gpus > 1 else 1
    make_console(stderr=True).print(f"planning for {gpus} x {machine.name}")
    result = search(config, gpus, machine, fixed, wanted=top, jobs=jobs)
    took = format_seconds(time.perf_counter() - start)
    if not result.runs:
        raise _refuse(result.misfits[0] if result.misfits else None, gpus, machine.name, machine.memory_bytes)
    print_title(
        f"{gpus} x {machine.name}",
        f"{result.considered:,} candidates, {result.captured} captured, {took}; {list_axes(result)}",
    )
    print_rows([HEADS, *make_rows(result.runs)], ("dim", "bold", "none", "none", "green", "green", "yellow", "none"))
    print_plain("\nbatch: sequences x micro-batches on one rank; estimates for the machine, captured as it would run.")
    for number, run in enumerate(result.runs, 1):
        print_plain(f"{number}. {make_command(run, config, words, ranks=gpus)}")
    if explain:
        print_plain()
        for line in explain_run(result.runs[0]):
            print_plain(line)
    if json:
        text = strict_json.dump(make_json(result, config, words, gpus), indent=1)
        write_whole(Path(json), text + "\n")
    return 0


def _refuse(nearest: PlannedRun | None, gpus: int, machine: str, memory_bytes: int) -> NothingFits:
    """What comes closest, and how much is missing."""
    if nearest is None:
        return NothingFits(
            f"no mesh of {gpus} devices fits this recipe",
            why="the degrees, the sequence or the global batch divide by none of them",
            do="another --gpus, or --training.global_batch_size",
        )
    times = 2
    while nearest.needed_bytes / times > memory_bytes and times < 1024:
        times *= 2
    return NothingFits(
        f"nothing fits into the {format_bytes(memory_bytes)} of {gpus} x {machine}",
        why=f"the nearest needs {format_bytes(nearest.needed_bytes)}: {name_mesh(nearest.candidate)}, "
        f"{nearest.candidate.sequences} sequence(s) a micro-batch, {nearest.candidate.policy}",
        do=f"--gpus {gpus * times}, a machine with more memory, a shorter --training.seq_len, or "
        "--passes.offload_activations.budget_gib",
    )
