"""`monograph machine`: what estimates take a machine to be able to do, and what this one really can."""

import os
from dataclasses import fields
from pathlib import Path

import torch.multiprocessing as multiprocessing

from monograph.commands.insight_arguments import MachineMeasureArguments, MachineShowArguments
from monograph.commands.terminal import print_rows, print_title
from monograph.config.docs import find_field_docs
from monograph.errors import ConfigError
from monograph.execute.device import find_device, use_device
from monograph.machine.choose import find_machine
from monograph.machine.device import Machine
from monograph.machine.file import write_machine
from monograph.machine.measure import count_in_node, measure
from monograph.machine.table import MACHINES
from monograph.private_temporary import private_temporary
from monograph.system.child_process import safe_import_path
from monograph.system.console import print_plain
from monograph.whole_file import check_output


def show_machine(arguments: MachineShowArguments) -> int:
    """One machine field by field, or a line for each."""
    if not arguments.machine:
        print_title("Machines", "TFLOP/s of large matmuls, memory in GB, the rest in GB/s")
        print_rows([_COLUMNS, *map(_make_row, MACHINES.values())], ("bold cyan", *[""] * (len(_COLUMNS) - 1)))
        print_plain("\nUse one:   monograph plan RECIPE --gpus 8 --machine h100")
        print_plain("Its rates: monograph machine show h100")
        print_plain("Of yours:  monograph machine measure --out mine.json")
        return 0
    machine = find_machine(arguments.machine)
    docs = find_field_docs(Machine)
    print_title(machine.name)
    rows = [(each.name, _format(getattr(machine, each.name)), docs.get(each.name, "")) for each in fields(machine)]
    print_rows(rows[1:], ("bold cyan", "green", "none"))
    return 0


_COLUMNS = ("", "fp32", "bf16", "fp8", "memory", "bandwidth", "links", "network", "host")


def _make_row(machine: Machine) -> tuple[str, ...]:
    """The rates of one machine under _COLUMNS."""
    rates = machine.achieved_tflops()
    numbers = (
        *(rates.get(dtype, 0.0) for dtype in ("float32", "bfloat16", "float8")),
        machine.memory_gb,
        machine.memory_gb_per_second * machine.memory_fraction,
    )
    return (
        machine.name,
        *(_round(number) for number in numbers),
        f"{machine.link_gb_per_second:g} x {machine.devices_per_node}",
        f"{machine.network_gb_per_second:g}",
        f"{machine.host_gb_per_second:g}",
    )


def _round(rate: float) -> str:
    """Three digits, and more only before the point."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}" if rate else "-"


def _format(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(f"{size:g}:{fraction:.3g}" for size, fraction in value) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def measure_machine(arguments: MachineMeasureArguments) -> int:
    """Measure, on one rank or on several at once, and write the file."""
    out = Path(arguments.out)
    find_device(arguments.device)
    check_output("--out", arguments.out)
    if arguments.ranks > 1:
        if "WORLD_SIZE" in os.environ:
            why = "each of the ranks that a launcher started would start ranks of its own"
            raise ConfigError(f"--ranks {arguments.ranks}", why=why, do="leave --ranks out")
        with private_temporary("monograph-machine-", locks=True) as folder, safe_import_path():
            store = folder / "store"
            multiprocessing.spawn(_measure_rank, (arguments, store), nprocs=arguments.ranks)
    else:
        found = measure(use_device(arguments.device), name=arguments.name)
        if found is not None:
            write_machine(found, out)
    if int(os.environ.get("RANK", "0")) == 0:
        machine = find_machine(str(out))
        print_plain(machine.describe())
        ranks = arguments.ranks or int(os.environ.get("WORLD_SIZE", "1"))
        if count_in_node(ranks) == ranks:
            print_plain(
                f"\nthe network was not measured: {machine.network_gb_per_second:g} GB/s is the table's value for "
                f"such devices; start one rank on each GPU of two nodes with torchrun to measure it, or edit the file"
            )
        print_plain(f"\nwritten to {out}; for example: monograph inspect RECIPE --machine {out} --out inspected")
    return 0


def _measure_rank(rank: int, arguments: MachineMeasureArguments, store: Path) -> None:
    """One of the ranks of `--ranks N`."""
    ranks = arguments.ranks
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    found = measure(use_device(arguments.device), name=arguments.name, store=store)
    if found is not None:
        write_machine(found, Path(arguments.out))
