"""What can be refused before torch is imported: each function looks at the same arguments as the command it is for."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from monograph.commands.arguments import CheckPassArguments
from monograph.commands.insight_arguments import check_file
from monograph.config.references import import_reference
from monograph.errors import ConfigError
from monograph.execute.artifact.check import check_before_start
from monograph.execute.artifact.folder import check_target
from monograph.execute.artifact.keys import read_key
from monograph.machine.choose import AUTO, FALLBACK, find_machine
from monograph.machine.gpu_files import has_gpu_files
from monograph.passes.extra import is_pass, refuse_other
from monograph.report.folder import check_folder
from monograph.train.config import TrainerConfig
from monograph.train.input_folders import check_report_folder
from monograph.train.layout import count_ranks, plan_run_mesh
from monograph.whole_file import check_output_folder


def check_ranks(config: TrainerConfig, *, ranks: int, **_: Any) -> None:
    """train, verify: the mesh fits the ranks, and an artifact fits both."""
    launched = count_launched(ranks)
    if launched and ranks > 0:
        raise ConfigError(
            f"--ranks {ranks} under a launcher that started {launched} ranks",
            why="each of them would start ranks of its own",
            do="leave --ranks out, or start monograph without torchrun",
        )
    mesh = plan_run_mesh(config, launched or max(ranks, 1))
    if config.compile.artifact and not launched:
        check_before_start(config, config.compile, mesh)


def count_launched(ranks: int) -> int:
    """The ranks that a launcher started, by its variables; 0 without one.

    RANK alone is refused: a process would take itself for one of several and print nothing. --ranks sets it anew.
    """
    words = {name: os.environ.get(name, "0") for name in ("RANK", "WORLD_SIZE")}
    if not all(word.isascii() and word.isdigit() for word in words.values()) or (
        (ranks <= 0 or "WORLD_SIZE" in os.environ) and int(words["RANK"]) >= max(1, int(words["WORLD_SIZE"]))
    ):
        raise ConfigError(
            f"the environment has RANK {words['RANK']!r} and WORLD_SIZE {words['WORLD_SIZE']!r}",
            why="ranks are counted from 0, and there are WORLD_SIZE of them",
            do="start under torchrun, which sets both, or unset both for one process",
        )
    return int(words["WORLD_SIZE"])


def check_inspect(config: TrainerConfig, *, out: str, ranks: int, **_: Any) -> None:
    """inspect: there is a graph to show, of a mesh that the model fits, and a folder for it."""
    if config.compile.mode != "graph":
        raise ConfigError(
            f"compile.mode is {config.compile.mode}", why="inspect shows the captured graph", do="--compile.mode graph"
        )
    plan_run_mesh(config, ranks or count_ranks(config.parallelism))
    check_output_folder("--out", out)
    check_report_folder("--out", out, config)
    check_folder(out)


def check_plan_options(config: TrainerConfig, *, gpus: int, **_: Any) -> None:
    """plan: there is a graph to estimate, and the machine has this many devices."""
    if config.compile.mode != "graph":
        raise ConfigError(
            f"compile.mode is {config.compile.mode}", why="plan reads the captured graph", do="--compile.mode graph"
        )
    machine = find_machine(FALLBACK if config.machine == AUTO else config.machine)
    whole, used = machine.devices_per_node, machine.for_ranks(gpus).devices_per_node
    if 2 * used < whole:
        nearest = gpus // whole * whole
        raise ConfigError(
            f"--gpus {gpus} of {machine.name}, which has {whole} in a node",
            why=f"all nodes run the same number of ranks: {used} each",
            do=f"--gpus {nearest} or --gpus {nearest + whole}",
        )


def check_precompile(config: TrainerConfig, *, out: str, ranks: int, overwrite: bool, **_: Any) -> None:
    """precompile: there is a step to capture, a key to sign with, and room for the artifact."""
    if config.compile.mode != "graph":
        raise ConfigError(
            f"compile.mode is {config.compile.mode}",
            why="an artifact holds the captured step",
            do="--compile.mode graph",
        )
    if config.compile.artifact:
        raise ConfigError(
            f"compile.artifact is {config.compile.artifact}",
            why="precompile makes an artifact from the model, not from another artifact",
            do="leave it out",
        )
    plan_run_mesh(config, ranks or count_ranks(config.parallelism))
    read_key(config.compile.artifact_key_file)
    if not Path(out).exists():
        check_output_folder("--out", out)
    check_target(Path(out), overwrite=overwrite)


def check_tune(config: TrainerConfig, *, ranks: int, **_: Any) -> None:
    """tune: there is a step to capture for this mesh."""
    if config.compile.mode != "graph":
        raise ConfigError(
            f"compile.mode is {config.compile.mode}",
            why="the kernels of a step are read from its captured graph",
            do="--compile.mode graph",
        )
    if config.debug.device == "cpu" or not has_gpu_files():
        raise only_gpus_are_tuned("cpu")
    plan_run_mesh(config, ranks or count_ranks(config.parallelism))


def only_gpus_are_tuned(device: str) -> ConfigError:
    """The error of `monograph tune` on a machine without a GPU."""
    return ConfigError(
        f"the device is {device}, and kernels are tuned on GPUs",
        why="only custom kernels of GPUs have settings to tune; the step runs on a CPU without them",
        do="run it on the kind of GPU that will train",
    )


def check_bench(
    config: TrainerConfig, *, balanced_routing: bool, document_tokens: int, out: str = "", **_: Any
) -> None:
    """bench: one device; routing can be balanced only where there is a router, documents matter only to their mask."""
    if out:
        check_file(out, ".json", example="bench.json", makes_folder=True)
    for field in dataclasses.fields(config.parallelism):
        degree = getattr(config.parallelism, field.name)
        if field.name.endswith("_degree") and degree > 1:
            raise ConfigError(
                f"parallelism.{field.name} is {degree} and monograph bench is asked for",
                why="it measures the step of one device",
                do=f"--parallelism.{field.name} 1",
            )
    if balanced_routing and getattr(config.model, "moe", None) is None:
        raise ConfigError("--balanced-routing", why="this model has no experts", do="leave it out")
    if document_tokens and getattr(config.model, "mask", "") != "document":
        raise ConfigError(
            f"--document-tokens {document_tokens}",
            why="this model's attention does not look at documents",
            do="--model.mask document",
        )


def check_pass_arguments(arguments: CheckPassArguments) -> None:
    """check-pass: the name can be imported and is a pass; what it declares is part of the report."""
    kind = import_reference(arguments.reference)
    if not is_pass(kind):
        raise refuse_other(kind)
