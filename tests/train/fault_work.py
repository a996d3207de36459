"""What ranks do in tests of faulty hardware: bits that flip, ranks that are slow."""

import os
import time
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from monograph.execute.device import deterministic_kernels
from monograph.execute.graph_step import GraphStep
from monograph.parallel.groups import joined_groups
from monograph.run import build_trainer
from monograph.train.config import TrainerConfig
from monograph.train.data.loader import DataLoader
from monograph.train.folder import reserved_folder
from monograph.train.layout import plan_run_mesh
from monograph.train.replay_check import CorruptionFound, ReplayCheck
from monograph.train.startup import Startup
from tests.parallel.rank_work import CPU

MATMULS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)


class FlippedBit(TorchDispatchMode):
    """Flips the lowest bit of one value that a matmul returns: the hardware's fault, as far as the run can tell."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.call, self.seen = call, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in MATMULS and result.numel():
            self.seen += 1
            if self.seen == self.call:
                words = torch.int32 if result.element_size() == 4 else torch.int16
                flat = result.view(-1).view(words)
                flat[flat.numel() // 2] ^= 1 << 6
        return result


def train_with_flips(config: TrainerConfig, victim: int, is_permanent: bool, call: int = 5) -> str:
    """Train; on one rank a matmul goes wrong in the first of two computations of a check, or in both. The error."""
    original = ReplayCheck._compute
    computed = 0

    def compute(self: ReplayCheck, *args: Any) -> Any:
        nonlocal computed
        computed += 1
        if self.groups.rank == victim and (is_permanent or computed % 2):
            with FlippedBit(call):
                return original(self, *args)
        return original(self, *args)

    with patch.object(ReplayCheck, "_compute", compute):
        return train_quietly(config)


def train_with_slow_data(config: TrainerConfig, victim: int, seconds: float) -> str:
    """Train; one rank takes longer to read each of its batches."""
    original = DataLoader.batches

    def batches(self: DataLoader, *args: Any, **kwargs: Any) -> Any:
        feeder = original(self, *args, **kwargs)
        if int(os.environ["RANK"]) == victim:
            take = feeder._queue.take

            def take_slowly() -> Any:
                time.sleep(seconds)
                return take()

            feeder._queue.take = take_slowly
        return feeder

    with patch.object(DataLoader, "batches", batches):
        return train_quietly(config)


def train_without_room(config: TrainerConfig) -> str:
    """Train; the last rank has no memory left for an update op by op."""
    missing = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    with patch.object(GraphStep, "find_missing_memory", lambda self: int(missing)):
        return train_quietly(config)


def train_quietly(config: TrainerConfig) -> str:
    mesh = plan_run_mesh(config, int(os.environ["WORLD_SIZE"]))
    with (
        deterministic_kernels(config.debug.deterministic),
        joined_groups(mesh, CPU, timeout_seconds=60) as groups,
        reserved_folder(config, groups) as folder,
    ):
        trainer = build_trainer(config, groups, Startup(), folder)
        try:
            trainer.train()
        except CorruptionFound as error:
            return str(error)
        finally:
            trainer.step.close()
    return ""
