"""What a rank does in the tests of verify: a file of its own, because the ranks import it."""

import os

import torch

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


def command_with_bug(config: TrainerConfig, name: str) -> int:
    """The command itself, as one of the ranks."""
    with BUGS[name].plant():
        return verify_command(config)


def command(config: TrainerConfig) -> int:
    return verify_command(config)
