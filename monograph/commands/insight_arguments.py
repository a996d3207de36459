"""What the commands that answer questions take: machine, plan, bisect, watch, report, trace. Loads without torch."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from monograph.commands.sizes import parse_bytes
from monograph.config.configurable import Configurable
from monograph.errors import ConfigError
from monograph.launch.rank_limits import check_local_ranks
from monograph.machine.choose import find_machine
from monograph.system.foreign_text import show
from monograph.whole_file import check_output, is_stream


@dataclass(kw_only=True, slots=True)
class BisectArguments(Configurable.Config):
    """`monograph bisect`."""

    left: str = ""
    """One run, as it would follow `monograph train`, in quotes."""
    right: str = ""
    """The other run; without it, the eager step of the first."""
    steps: int = 3
    """Updates to compare, until one differs."""
    tolerance: float = 0.0
    """Largest difference, relative to the largest value of a tensor, that counts as equal; 0 compares bit for bit."""

    def check(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"--steps must be >= 1, got {self.steps}", why="it counts updates", do="--steps 3")
        if self.tolerance < 0:
            raise ConfigError(
                f"--tolerance {self.tolerance}", why="a difference is not negative", do="--tolerance 1e-5"
            )


@dataclass(kw_only=True, slots=True)
class MachineMeasureArguments(Configurable.Config):
    """`monograph machine measure`."""

    out: str = ""
    """The JSON file to write, for --machine FILE.json."""
    name: str = ""
    """What estimates call the machine; empty takes the device's name."""
    ranks: int = 0
    """Start this many local ranks, which measure at once, and the links between them; 0 is one process, or one of the
    ranks that torchrun started."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes a GPU when there is one."""

    def check(self) -> None:
        if self.ranks < 0:
            raise ConfigError(f"--ranks must be >= 0, got {self.ranks}", why="it counts processes", do="--ranks 2")
        check_local_ranks(self.ranks)
        if not self.out.endswith(".json"):
            what = f"--out {self.out}" if self.out else "--out is missing"
            raise ConfigError(what, why="the rates go to a .json file", do="--out machine.json")


@dataclass(kw_only=True, slots=True)
class MachineShowArguments(Configurable.Config):
    """`monograph machine show`."""

    machine: str = ""
    """One machine, by name or as a .json file; empty lists all."""

    def check(self) -> None:
        if self.machine:
            find_machine(self.machine)


@dataclass(kw_only=True, slots=True)
class PlanOptions(Configurable.Config):
    """`monograph plan`."""

    gpus: int = 0
    """Devices to plan for; none is needed here."""
    memory: str = ""
    """Memory of one device, such as 80GiB; empty takes the machine's."""
    explain: bool = False
    """Also show where the time and the memory of the best run go."""
    simulate: bool = True
    """Compute a small copy of the best run on all ranks of its mesh in this process, and compare it with one device."""
    json: str = ""
    """Also write the plan to this file."""
    out: str = ""
    """Also write the plan as a page to this .html file."""
    top: int = 10
    """How many runs to capture and show."""

    def check(self) -> None:
        if self.gpus < 1:
            raise ConfigError(f"--gpus must be >= 1, got {self.gpus}", why="it counts devices", do="--gpus 64")
        if self.top < 1:
            raise ConfigError(f"--top must be >= 1, got {self.top}", why="it counts runs", do="--top 10")
        if self.memory:
            parse_bytes(self.memory)
        if self.json:
            check_file(self.json, ".json", example="plan.json", flag="--json")
        if self.out:
            check_file(self.out, ".html", example="plan.html")


@dataclass(kw_only=True, slots=True)
class WatchArguments(Configurable.Config):
    """`monograph watch`."""

    folder: str = ""
    """Folder of a run (its job.dump_folder): training, finished or killed; or a folder of runs."""
    also: tuple[str, ...] = ()
    """Folders of further runs, shown side by side."""
    out: str = ""
    """Write the page to this file instead of serving it."""
    port: int = 0
    """Port on this machine; 0 takes a free one."""

    def check(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise ConfigError(f"--port {self.port}", why="ports are 1 to 65535", do="leave it out")
        if self.out:
            check_file(self.out, ".html", example="runs.html")


@dataclass(kw_only=True, slots=True)
class ReportCompareArguments(Configurable.Config):
    """`monograph report compare`."""

    left: str = ""
    """A folder that `monograph inspect` wrote."""
    right: str = ""
    """The other folder."""
    out: str = ""
    """The page to write."""

    def check(self) -> None:
        check_file(self.out, ".html", example="compared.html", inputs=(self.left, self.right))


@dataclass(kw_only=True, slots=True)
class TraceJoinArguments(Configurable.Config):
    """`monograph trace join`."""

    predicted: str = ""
    """The predicted.trace.json that `monograph inspect` wrote."""
    measured: str = ""
    """A trace of `monograph bench --profile` or of a run with `--profiler.start`."""
    out: str = ""
    """The trace to write."""
    names: str = ""
    """A trace of `monograph bench --profile` of the same step, which names the modules of kernels in a CUDA graph."""
    top: int = 20
    """Rows of the table: modules whose predicted and measured times differ most."""

    def check(self) -> None:
        if self.top < 1:
            raise ConfigError(f"--top must be >= 1, got {self.top}", why="it counts rows", do="--top 20")
        check_file(self.out, ".json", example="both.trace.json", inputs=(self.predicted, self.measured, self.names))


def check_file(
    out: str, ending: str, *, example: str, flag: str = "--out", inputs: Sequence[str] = (), makes_folder: bool = False
) -> None:
    """Refuse a file of another kind, one that cannot be written, and one of the command's own inputs."""
    if not out.endswith(ending) and not is_stream(Path(out)):
        what = f"{flag} {show(out)}" if out else f"{flag} is missing"
        raise ConfigError(what, why=f"it is a {ending} file", do=f"{flag} {example}")
    check_output(flag, out, makes_folder=makes_folder)
    if replaced := [name for name in inputs if name and _is_part_of(out, name)]:
        why = f"it would replace {show(replaced[0])}, or a file in it, which this command reads"
        raise ConfigError(f"{flag} {show(out)}", why=why, do=f"choose another name: {flag} {example}")


def _is_part_of(out: str, name: str) -> bool:
    """Whether `out` is this file, under whatever name, or lies in this folder."""
    try:
        if os.path.samefile(out, name):  # a hard link has another path
            return True
    except OSError:  # one of the two does not exist
        pass
    return os.path.isdir(name) and Path(os.path.realpath(name)) in Path(os.path.realpath(out)).parents
