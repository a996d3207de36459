"""`monograph plan`: will it fit, how fast, on which mesh."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from monograph import strict_json
from monograph.commands.sizes import parse_bytes
from monograph.commands.terminal import print_rows, print_title
from monograph.config.origins import Origin
from monograph.errors import MonographError
from monograph.machine.choose import AUTO, FALLBACK, find_machine
from monograph.machine.device import Machine
from monograph.plan.axes import find_fixed
from monograph.plan.page import collect_plan
from monograph.plan.search import PlanResult, most_captures, search
from monograph.plan.show import (
    HEADS,
    compare_runs,
    explain_run,
    list_axes,
    make_command,
    make_json,
    make_other_rows,
    make_rows,
    name_mesh,
    name_numerics,
    name_policy,
)
from monograph.plurals import counted
from monograph.report.page import make_plan_page
from monograph.report.units import format_bytes, format_seconds
from monograph.system.console import make_console, print_plain, styled
from monograph.train.config import TrainerConfig
from monograph.verify.simulate.first import conclude, try_simulation
from monograph.verify.simulate.picture import draw_mesh
from monograph.verify.simulate.run import MeshSimulation
from monograph.whole_file import write_output

_STYLES = ("dim", "bold", "none", "none", "green", "green", "yellow", "none", "none")


class NothingFits(MonographError):
    """No candidate fits into the memory."""

    exit_code = 1


def plan(
    config: TrainerConfig,
    *,
    gpus: int,
    memory: str,
    explain: bool,
    simulate: bool,
    json: str,
    out: str,
    top: int,
    words: list[str],
    origins: Mapping[str, Origin],
) -> int:
    """Search, then print the best ten, what limits each, and how to run them."""
    start = time.perf_counter()
    if config.machine == AUTO:
        config = config.replace(machine=FALLBACK)
    machine = find_machine(config.machine)
    if memory:
        machine = replace(machine, memory_gb=parse_bytes(memory) / 1e9)
    fixed = find_fixed(config, origins)
    jobs = min(2, os.cpu_count() or 1) if gpus > 1 else 1
    most = most_captures(top, jobs)
    make_console(stderr=True).print(
        f"planning for {gpus} x {machine.name}: at most {most} captures of a few seconds each"
    )
    result = search(config, gpus, machine, fixed, wanted=top, jobs=jobs)
    took = format_seconds(time.perf_counter() - start)
    if not result.runs:
        raise _refuse(result, gpus, machine, words)
    print_title(
        f"{gpus} x {machine.name}",
        f"{result.considered:,} candidates, {result.captured} captured, {took}; {list_axes(result)}",
    )
    print_runs(make_rows(result.runs))
    print_plain("\nbatch: sequences x micro-batches per rank. All numbers are estimates from the captured graphs.")
    for number, run in enumerate(result.runs, 1):
        print_plain(f"{number}. {make_command(run, words)}")
    if result.others:
        print_plain("\nIf rounding or precision may change (the runs above keep the recipe's numerics):")
        print_runs(make_other_rows(result.others, result.runs[0]))
        for run in result.others:
            print_plain(f"{name_numerics(run)}: {make_command(run, words)}")
    if explain:
        print_plain()
        for line in (*explain_run(result.runs[0]), *compare_runs(result.runs)):
            print_plain(line)
    if json:
        text = strict_json.dump(make_json(result, words, gpus), indent=1)
        write_output(Path(json), text + "\n")
    best = result.runs[0]
    found = try_simulation(best.config, best.choice.mesh) if simulate and gpus > 1 else None
    if out:
        options = ["--gpus", str(gpus), *(["--memory", memory] if memory else [])]
        shown = {"simulated": draw_mesh(found)} if isinstance(found, MeshSimulation) else {}
        write_output(Path(out), make_plan_page(collect_plan(result, words, gpus, options) | shown))
        print_plain(f"\npage: {out}")
    if found is not None:
        print_plain(f"\n1. {conclude(found, best.config, instead='--simulate false plans without')}")
    return 0


def print_runs(rows: Sequence[Sequence[str]]) -> None:
    """A table of runs; where a terminal is too narrow for it, the mesh of each run stands above its numbers."""
    console = make_console()
    rows = [HEADS, *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    if not console.is_terminal or sum(widths) + 2 * len(HEADS) <= console.width:
        print_rows(rows, _STYLES)
        return
    for row in rows:
        name, mesh, batch, saves, *numbers = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        what = "" if row is HEADS else f", saves {saves.rstrip()}"
        console.print(styled((f"  {name}  ", "dim"), (mesh.rstrip(), "bold"), what))
        console.print(styled(f"      {batch}  ", ("  ".join(numbers).rstrip(), "green" if what else "dim")))


def _refuse(result: PlanResult, gpus: int, machine: Machine, words: list[str]) -> NothingFits:
    """What comes closest and how much it lacks, and the nearest number of devices that is enough."""
    if not result.misfits:
        return NothingFits(
            f"no mesh of {gpus} devices fits this recipe",
            why="no combination of degrees divides the heads, the experts, the sequence and the global batch evenly",
            do="another --gpus, or --training.global_batch_size",
        )
    closest = result.misfits[0]
    also = "a machine with more memory, or a shorter --training.seq_len"
    do = also
    if result.nearest is not None:
        near = result.nearest
        do = (
            f"--gpus {near.choice.mesh.world_size} ({name_mesh(near)}, {name_policy(near)}: "
            f"{format_bytes(near.needed_bytes)}): {make_command(near, words)}; or {also}"
        )
    return NothingFits(
        f"nothing fits into the {format_bytes(machine.memory_bytes)} of {gpus} x {machine.name}",
        why=f"the nearest needs {format_bytes(closest.needed_bytes)}: {name_mesh(closest)}, "
        f"{counted(closest.choice.sequences, 'sequence')} per micro-batch, {name_policy(closest)}",
        do=do,
    )
