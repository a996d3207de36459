"""Commands that run on one rank or many, as one of the ranks runs them; monograph/launch/local.py starts several."""

import ctypes
import os
import signal
import sys
import threading
from types import FrameType

from monograph.commands.terminal import print_plain
from monograph.crash import print_stacks_on_crash
from monograph.recipes.pretrained import MODEL_FROM, name_recipe, render_run
from monograph.run import train_command
from monograph.train.command_line import RANKS_VARIABLE, CommandLine
from monograph.train.config import TrainerConfig
from monograph.verify.run import verify_command

_PR_SET_PDEATHSIG = 1
"""From Linux's prctl.h."""


def train(config: TrainerConfig, *, ranks: int, words: list[str]) -> int:
    """`monograph train`."""
    start_rank()
    print_generated(config, words)
    return train_command(config, find_line(words))


def verify(config: TrainerConfig, *, ranks: int, words: list[str]) -> int:
    """`monograph verify`."""
    start_rank()
    return verify_command(config)


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


def start_rank() -> None:
    """What every rank does first, a launcher's or the only one."""
    print_stacks_on_crash()
    if int(os.environ.get("WORLD_SIZE", "0")):
        _end_with_launcher()


def _end_with_launcher() -> None:
    """Stop in order, as on SIGTERM, when the launcher hangs up or dies without a word; nobody else would stop us.

    The kernel may say so several times (once for each thread of the launcher), and a second SIGTERM would kill. Python
    may begin with the second while the first has not run a line yet, so which of them is the first is up to a lock. A
    SIGTERM that somebody sends afterwards is a second request, and kills.
    """
    first = threading.Lock()

    def stop_once(_number: int, _frame: FrameType | None) -> None:
        if first.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGTERM)

    if sys.platform == "linux":
        signal.signal(signal.SIGHUP, stop_once)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
