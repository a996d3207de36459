"""Training runs in processes of their own, which tests may kill."""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from monograph.cli import main
from monograph.run import train
from monograph.train.checkpoint.disk import Disk
from monograph.train.config import TrainerConfig
from tests.kit.preloaded import FORKS

PATIENCE_SECONDS = 120.0
"""A run that takes longer than this hangs, however busy the machine is."""
KILLED = -signal.SIGKILL


@dataclass(frozen=True)
class WriteFailures:
    """What goes wrong with the disk of a run: it is slow, or the process is killed at one of its calls."""

    method: str
    """The call of `Disk` that it happens at."""
    number: int = 0
    """Which of these calls is the last, counted from the commit of checkpoint number `commits`; 0: none."""
    when: str = "before"
    """before: the call is not made any more; half: half of the data is written; after: it was made."""
    commits: int = 0
    seconds: float = 0.0
    """How long each of these calls takes."""

    def install(self) -> None:
        commits = calls = 0
        rename, original = Disk.rename, getattr(Disk, self.method)

        def count_commits(disk: Disk, old: Path, new: Path) -> None:
            nonlocal commits
            rename(disk, old, new)
            commits += new.name.startswith("step-")

        def call(disk: Disk, *args: Any) -> Any:
            nonlocal calls
            calls += commits >= self.commits
            time.sleep(self.seconds)
            if not calls or calls != self.number:
                return (count_commits if self.method == "rename" else original)(disk, *args)
            if self.when == "half":
                original(disk, args[0], args[1][: len(args[1]) // 2])
            if self.when == "after":
                original(disk, *args)
            os.kill(os.getpid(), signal.SIGKILL)

        Disk.rename = count_commits
        setattr(Disk, self.method, call)


def start(config: TrainerConfig, trouble: WriteFailures | None = None) -> Any:
    """Begin to train in another process."""
    return _start(_train, config, trouble)


def start_command(*words: str) -> Any:
    """Begin a `monograph` command in another process."""
    return _start(_run_command, *words)


def run(config: TrainerConfig, trouble: WriteFailures | None = None) -> int:
    """Train in another process and return its exit code: KILLED when it was killed."""
    return finish(start(config, trouble))


def finish(process: Any) -> int:
    process.join(PATIENCE_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError("the run hangs")
    return process.exitcode


def kill(process: Any) -> int:
    process.kill()
    return finish(process)


def wait_until(is_so: Callable[[], bool], process: Any) -> None:
    """Wait for something that a running process does; an error when it ends, or hangs, without having done it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if not process.is_alive() and not is_so():
            raise AssertionError(f"the run ended with {process.exitcode} before it did what the test waits for")
        if time.monotonic() > deadline:
            process.kill()
            raise AssertionError("the run hangs")
        time.sleep(0.002)


def _start(target: Callable[..., None], *args: Any) -> Any:
    process = FORKS.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def _train(config: TrainerConfig, trouble: WriteFailures | None) -> None:
    torch.set_num_threads(1)
    if trouble is not None:
        trouble.install()
    train(config)


def _run_command(*words: str) -> None:
    torch.set_num_threads(1)
    sys.exit(main(words))
