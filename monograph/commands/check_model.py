"""`monograph check-model`: does a model of your own keep what the protocol of models promises?"""

import subprocess
import sys
from collections.abc import Iterator, Sequence

from monograph.axes import Axis
from monograph.checks.captured_model import shrink_config
from monograph.checks.model_checks import check_model, find_axes
from monograph.checks.pass_checks import CheckRow
from monograph.commands.arguments import CheckModelArguments
from monograph.commands.terminal import print_rows, print_title
from monograph.config.components import build_replacement, choose_class, find_slot
from monograph.config.references import import_reference
from monograph.errors import EXIT_FAILED
from monograph.private_temporary import private_temporary
from monograph.recipes.catalog import load_recipe
from monograph.system.child_process import safe_import_path
from monograph.system.console import print_plain
from monograph.train.config import TrainerConfig

BASE = "llama3_debugmodel"
"""The run that a model without a recipe is tried in."""
DEGREES = {Axis.TP: "tensor_parallel_degree", Axis.EP: "expert_parallel_degree"}
SHOWN = 6
"""Lines of a failed verify that the report shows."""


def check_model_command(arguments: CheckModelArguments) -> int:
    """Try the model, print what was found, and return 0 when it keeps its promises."""
    config, words = find_run(arguments.model)
    config = shrink_config(config)
    rows = list(check_model(config))
    if arguments.ranks > 1 and not any(row.status == "refused" for row in rows):
        rows += verify_axes(config, words, arguments.ranks)
    print_title(arguments.model, "check by check")
    print_rows([(row.status, row.check, row.note) for row in rows], ("bold cyan", "none", "none"))
    refused = [row for row in rows if row.status == "refused"]
    verdict = (
        f"failed: {refused[0].note}" if refused else f"all checks passed; train it: monograph train {' '.join(words)}"
    )
    print_plain(f"\n{verdict}")
    return EXIT_FAILED if refused else 0


def find_run(model: str) -> tuple[TrainerConfig, list[str]]:
    """The run to try a model in, and how it is written: a recipe, or a class in the place of another recipe's model."""
    if ":" not in model or not isinstance(import_reference(model), type):
        return load_recipe(model), [model]
    config = load_recipe(BASE)
    slot = find_slot(config, "model")
    assert slot is not None
    chosen = build_replacement(choose_class(slot, model), config.model, {}, "model")
    return config.replace(model=chosen), [BASE, "--model", model]


def verify_axes(config: TrainerConfig, words: Sequence[str], ranks: int) -> Iterator[CheckRow]:
    """One device against several, for every axis that the model's plan has."""
    axes: dict[str, list[str]] = {"fsdp": []} | {
        axis.value: [f"--parallelism.{DEGREES[axis]}", str(ranks)] for axis in find_axes(config)
    }
    sizes = ["--training.seq_len", str(config.training.seq_len), "--training.local_batch_size", "2"]
    sizes += ["--training.global_batch_size", "-1", "--debug.device", "cpu"]
    for axis, flags in axes.items():
        with private_temporary("monograph-check-") as folder:
            command = ["verify", *words, *sizes, *flags, "--ranks", str(ranks), "--job.dump_folder", str(folder)]
            with safe_import_path():
                done = subprocess.run(
                    [sys.executable, "-m", "monograph", *command], capture_output=True, text=True, check=False
                )
        text = done.stdout if done.returncode == 0 else done.stderr + done.stdout
        lines = [line for line in text.splitlines() if line.strip()]
        equal = next((line for line in lines if line.startswith("equal")), lines[-1])
        note = equal if done.returncode == 0 else "\n".join(lines[-SHOWN:])
        yield CheckRow("", f"verify {axis}{ranks}", "refused" if done.returncode else "ok", note)
