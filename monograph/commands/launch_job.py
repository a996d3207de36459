"""`monograph launch`: the job file of an engine, made from a recipe and its mesh; printed, written or submitted."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from monograph.commands.launch_arguments import LaunchOptions
from monograph.commands.table import SIMULATE
from monograph.config.references import load_reference
from monograph.errors import ConfigError, MonographError
from monograph.launch import kubernetes, skypilot, slurm, torchrun
from monograph.launch.job import Job, check_memory, check_nodes, find_notes, plan_seconds_to_save, plan_words
from monograph.launch.quote import quote_word, quote_words
from monograph.private_temporary import private_temporary
from monograph.recipes.size import count_parameters
from monograph.system.console import make_console, print_plain
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from monograph.whole_file import check_output, write_output

RENDER = {
    "slurm": slurm.render,
    "kubernetes": kubernetes.render,
    "skypilot": skypilot.render,
    "torchrun": torchrun.render,
}
SUBMIT = {"slurm": ["sbatch"], "kubernetes": ["kubectl", "apply", "-f"], "skypilot": ["sky", "jobs", "launch", "--yes"]}
"""The command that a job file is handed to, as its last argument."""
_OF_THIS_CALL = {"out", "submit", "simulate"}
"""Options that leave the job as it is."""


def launch_job(config: TrainerConfig, *, recipe: str, words: list[str], **options: Any) -> int:
    """Check, then print the job file, write it to --out, or --submit it."""
    if options["out"]:
        check_output("--out", options["out"], makes_folder=True)
    job = plan_job(config, recipe=recipe, words=words, **options)
    mesh = plan_run_mesh(config, job.nodes * job.ranks_per_node)
    if options["simulate"] and mesh.world_size > 1:
        line = load_reference(SIMULATE)(config, mesh, instead="--simulate false launches")
        make_console(stderr=True).print(f"note: {line}")
    text = RENDER[options["on"]](job)
    is_shown = not (options["out"] or options["submit"]) and sys.stdout.isatty()  # the file holds the notes
    for note in () if is_shown else job.notes:
        make_console(stderr=True).print(f"note: {note}")
    if options["out"]:
        write_output(Path(options["out"]), text)
        print_plain(f"written: {options['out']}")
    if options["submit"]:
        return submit(options["on"], text, job)
    if not options["out"]:
        print_plain(text.rstrip("\n"))
    return 0


def plan_job(config: TrainerConfig, *, recipe: str, words: list[str], **options: Any) -> Job:
    """The job, once everything is known to fit."""
    nodes, ranks = options["nodes"], options["gpus_per_node"]
    min_nodes = options["min_nodes"] or nodes
    mesh = check_nodes(config, nodes=nodes, min_nodes=min_nodes, ranks_per_node=ranks)
    size = count_parameters(config.model)
    memory = check_memory(config, mesh, size.total if size else None)
    if options["on"] == "skypilot" and config.debug.device != "cpu" and not options["accelerators"]:
        raise ConfigError(
            "--accelerators is missing", why="SkyPilot rents machines by their GPUs", do="--accelerators H100"
        )
    check_folder(options["on"], config.job.dump_folder, options["mount"])
    seconds, reckoned = options["seconds_to_save"], ""
    if not seconds:
        seconds, reckoned = plan_seconds_to_save(config, mesh, size.total if size else None, nodes=min_nodes)
    notes = [*find_notes(config, mesh, ranks_per_node=ranks), *(each for each in (memory, reckoned) if each)]
    defaults = LaunchOptions()
    changed = {name for name, value in options.items() if value != getattr(defaults, name)} - _OF_THIS_CALL
    named = [name for name in options if name in changed | {"on", "nodes", "gpus_per_node"}]
    shown = [f"--{name} {quote_word(str(options[name]))}" for name in named]
    return Job(
        name=options["name"] or make_name(recipe),
        nodes=nodes,
        min_nodes=min_nodes,
        ranks_per_node=ranks,
        has_gpus=config.debug.device != "cpu",
        words=plan_words(words, config),
        folder=config.job.dump_folder,
        command=f"monograph launch {quote_words(words)} {' '.join(shown)}",
        notes=tuple(notes),
        seconds_to_save=seconds,
        **{
            name: options[name]
            for name in (
                *("python", "port", "max_restarts", "time", "partition", "account", "image", "volume_claim"),
                *("mount", "accelerators", "infra"),
            )
        },
    )


def check_folder(engine: str, folder: str, mount: str) -> None:
    """Refuse a run's folder that the engine would lose with the node: a restart would begin at step 1."""
    if engine not in ("kubernetes", "skypilot"):
        return
    if not Path(folder).is_absolute() or (mount and not Path(folder).is_relative_to(mount)):
        below = mount or "/shared"
        raise ConfigError(
            f"job.dump_folder is {folder}, which is not below {mount or 'a mounted volume'}",
            why="files elsewhere in a container or on a node are lost with it",
            do=f"--mount {below} --job.dump_folder {quote_word(f'{below}/{Path(folder).name}')}"
            + (" --volume_claim NAME" if engine == "kubernetes" else ""),
        )


def make_name(recipe: str) -> str:
    """A recipe's name as all engines accept it: lower case letters, digits and dashes, at most 52."""
    return re.sub(r"[^a-z0-9]+", "-", recipe.rpartition(":")[2].lower()).strip("-")[:52].rstrip("-") or "monograph"


def submit(engine: str, text: str, job: Job) -> int:
    """Hand the file to the engine's own command; its exit code is ours."""
    if engine == "torchrun":
        if job.nodes > 1:
            raise ConfigError(
                f"--submit on torchrun with {job.nodes} nodes",
                why="it starts the agents of one node, and the other nodes need theirs",
                do="--out job.sh, and run it on every node: HEAD=address bash job.sh",
            )
        return subprocess.run(["bash", "-c", text], check=False).returncode
    command = SUBMIT[engine]
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f"--submit needs {command[0]}, which is not on the PATH",
            why=f"it hands the job to {engine}",
            do="submit from a machine that has it, or leave --submit out and use the printed file",
        )
    with private_temporary("monograph-launch-") as folder:
        path = folder / f"{job.name}.{'sh' if engine == 'slurm' else 'yaml'}"
        path.write_text(text, encoding="utf-8")
        sys.stdout.flush()
        code = subprocess.run([*command, str(path)], check=False).returncode
    if code:
        raise MonographError(f"{shlex.join(command)} ended with exit code {code}", do="see its output above")
    return 0
