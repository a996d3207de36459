"""Threads of process groups, counted; and a program that trains, fails, and says which of them are left at its end."""

import atexit
import os
import sys
from pathlib import Path

import torch

from monograph.parallel.groups import Groups, joined_groups
from monograph.parallel.mesh import Mesh
from monograph.run import train
from monograph.train.checkpoint.ranks import Ranks
from tests.kit.tiny import tiny

CPU = torch.device("cpu")
SHORT = {"training.steps": 1, "model.n_layers": 1, "checkpoint.enabled": False, "training.compute_dtype": "float32"}


def count_threads() -> int:
    """Threads of this process that belong to gloo."""
    names = [Path(f"/proc/self/task/{task}/comm").read_text() for task in os.listdir("/proc/self/task")]
    return sum("gloo" in name for name in names)


def talk_and_leave() -> tuple[int, int, int]:
    """On one rank: gloo's threads before it joined, while it was there, and after it left; holders stay alive."""
    before = count_threads()
    with joined_groups(Mesh(dp_shard=2), CPU, timeout_seconds=30) as groups:
        ranks = Ranks(groups.checkpoint_group())
        ranks.all_gather_object(groups.any_rank(False))
        during = count_threads()
    assert isinstance(groups, Groups) and ranks.size == 2, "both are still referred to"
    return before, during, count_threads()


def main() -> None:
    """Train in two modes, then fail; what is left when the interpreter ends is printed."""
    atexit.register(lambda: print(f"threads at the end: {count_threads()}", flush=True))
    folder = Path(sys.argv[1])
    train(tiny("llama3", folder, SHORT))
    train(tiny("llama3", folder, {**SHORT, "compile.mode": "graph"}))
    train(tiny("llama3", folder, {**SHORT, "training.steps": 4, "optimizer.lr": 1e30, "optimizer.weight_decay": 0.0}))


if __name__ == "__main__":
    main()
