"""`monograph train`, as one of the ranks runs it; monograph/launch/local.py starts several."""

import os
from collections.abc import Mapping

from monograph.commands.table import RUN_ROOM
from monograph.config.origins import Origin
from monograph.config.references import load_reference
from monograph.crash import print_stacks_on_crash
from monograph.execute.device import find_device
from monograph.recipes.pretrained import MODEL_FROM, name_recipe, render_run
from monograph.run import train_command
from monograph.system.console import print_plain
from monograph.train.command_line import RANKS_VARIABLE, CommandLine
from monograph.train.config import TrainerConfig


def train(config: TrainerConfig, *, ranks: int, words: list[str], origins: Mapping[str, Origin]) -> int:
    """`monograph train`."""
    print_stacks_on_crash()
    if (device := find_device(config.debug.device)).type == "cuda":
        load_reference(RUN_ROOM)(config, device, words, origins)
    print_generated(config, words)
    return train_command(config, find_line(words))


def print_generated(config: TrainerConfig, words: list[str]) -> None:
    """A run that starts from a model in a folder, as a recipe that can be kept and changed."""
    if f"--{MODEL_FROM}" not in words or os.environ.get("RANK", "0") != "0":
        return
    folder = words[words.index(f"--{MODEL_FROM}") + 1]
    print_plain(f"# This run as a recipe: keep it in my_recipe.py, and train with my_recipe:{name_recipe(folder)}")
    print_plain(render_run(folder, config))


def find_line(words: list[str]) -> CommandLine:
    """How this run was started, as one of the ranks sees it."""
    ranks = int(os.environ.get(RANKS_VARIABLE, "0"))
    return CommandLine(words, ranks, is_launched="WORLD_SIZE" in os.environ and not ranks)
