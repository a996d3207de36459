"""What a rank does in the tests of verify: a file of its own, because the ranks import it."""

import os
from unittest.mock import patch

import torch

import monograph.verify.float8
from monograph.config.leaves import replace_leaf
from monograph.parallel.groups import joined_groups
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from monograph.verify.run import verify, verify_command
from monograph.verify.verdict import Verdict
from tests.verify.seeded_bugs import BUGS


def verify_on_ranks(config: TrainerConfig) -> Verdict | None:
    """`monograph verify` without its printing."""
    mesh = plan_run_mesh(config, int(os.environ["WORLD_SIZE"]))
    with joined_groups(mesh, torch.device("cpu"), timeout_seconds=config.parallelism.timeout_seconds) as groups:
        return verify(config, groups)


def verify_with_bug(config: TrainerConfig, name: str) -> Verdict | None:
    """One step of a program that is wrong in one place."""
    mesh = plan_run_mesh(config, int(os.environ["WORLD_SIZE"]))
    with BUGS[name].plant(), joined_groups(mesh, torch.device("cpu"), timeout_seconds=20) as groups:
        return verify(config, groups, steps=1)


def verify_briefly(config: TrainerConfig, name: str) -> Verdict | None:
    """One step of a program with a fault, or of a right one where `name` is empty."""
    return verify_with_bug(config, name) if name else verify_steps(config, 1)


def verify_steps(config: TrainerConfig, steps: int) -> Verdict | None:
    """`monograph verify` of so many steps."""
    mesh = plan_run_mesh(config, int(os.environ["WORLD_SIZE"]))
    with joined_groups(mesh, torch.device("cpu"), timeout_seconds=config.parallelism.timeout_seconds) as groups:
        return verify(config, groups, steps=steps)


def verify_with_other_scales(config: TrainerConfig) -> Verdict | None:
    """The mesh has a scale for every row, and the one device that it is compared with one for every tensor."""
    honest = monograph.verify.float8.on_one_device

    def on_one_device(config: TrainerConfig) -> TrainerConfig:
        return replace_leaf(honest(config), "passes.quantize_matmuls.recipe", "tensorwise")

    with patch.object(monograph.verify.float8, "on_one_device", on_one_device):
        return verify_on_ranks(config)


def command_with_bug(config: TrainerConfig, name: str) -> int:
    """The command itself, as one of the ranks."""
    with BUGS[name].plant():
        return verify_command(config)


def command(config: TrainerConfig) -> int:
    return verify_command(config)
