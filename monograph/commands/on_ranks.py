"""Commands that run on one rank or many: the mesh is checked first, without torch, and only then anything starts."""

import ctypes
import importlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from monograph.errors import ConfigError
from monograph.execute.artifact.check import check_before_start
from monograph.train.command_line import RANKS_VARIABLE, CommandLine
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh

_PR_SET_PDEATHSIG = 1
"""From Linux's prctl.h."""


def train(config: TrainerConfig, *, ranks: int, words: list[str]) -> int:
    """`monograph train`."""
    return _on_ranks(config, ranks, ["train", *words], "monograph.run:train_command", find_line(words))


def verify(config: TrainerConfig, *, ranks: int, words: list[str]) -> int:
    """`monograph verify`."""
    return _on_ranks(config, ranks, ["verify", *words], "monograph.verify.run:verify_command")


def find_line(words: list[str]) -> CommandLine:
    """How this run was started, as one of the ranks sees it."""
    ranks = int(os.environ.get(RANKS_VARIABLE, "0"))
    return CommandLine(words, ranks, is_launched="WORLD_SIZE" in os.environ and not ranks)


def _on_ranks(config: TrainerConfig, ranks: int, words: list[str], function: str, *more: Any) -> int:
    """Be one rank (of a launcher's, or the only one), or start `ranks` of them that run the same words."""
    launched = int(os.environ.get("WORLD_SIZE", "0"))
    if launched and ranks > 0:
        raise ConfigError(
            f"--ranks {ranks} under a launcher that started {launched} ranks",
            why="each of them would start ranks of its own",
            do="leave --ranks out, or start monograph without torchrun",
        )
    mesh = plan_run_mesh(config, launched or max(ranks, 1))
    if config.compile.artifact and not launched:
        check_before_start(config, config.compile, mesh)
    if ranks > 0:
        start = importlib.import_module("monograph.launch").launch
        return start(words, ranks, config)
    if launched:
        _end_with_launcher()
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)(config, *more)


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
