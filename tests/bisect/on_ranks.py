"""What a rank does in the tests of bisect: a file of its own, because the ranks import it."""

import os
from contextlib import nullcontext

import torch

from monograph.axes import Axis
from monograph.bisect.run import Outcome, bisect
from monograph.parallel.groups import joined_groups
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from tests.bisect.faults import FAULTS, planted, wrong_gradient


def eager_of(config: TrainerConfig) -> TrainerConfig:
    eager = config.replace(compile=type(config.compile)(mode="eager"), passes=type(config.passes)())
    return eager.replace(parallelism=config.parallelism.replace(fsdp="graph"))


def bisect_with_fault(config: TrainerConfig, name: str) -> tuple[Outcome, list[str]]:
    """The graph step with a fault in one pass against its eager step, and the nodes that are wrong."""
    mesh = plan_run_mesh(config, int(os.environ.get("WORLD_SIZE", "1")))
    with planted(name) as wrong, joined_groups(mesh, torch.device("cpu"), timeout_seconds=60) as groups:
        return bisect(config, eager_of(config), groups, steps=1, tolerance=FAULTS[name].tolerance), wrong


def bisect_two(left: TrainerConfig, right: TrainerConfig, steps: int) -> Outcome:
    mesh = plan_run_mesh(left, int(os.environ.get("WORLD_SIZE", "1")))
    with joined_groups(mesh, torch.device("cpu"), timeout_seconds=60) as groups:
        return bisect(left, right, groups, steps=steps, tolerance=0.0)


def bisect_with_bad_rank(config: TrainerConfig, bad: int) -> list[Outcome]:
    """One rank's gradient of one parameter is wrong after it was summed."""
    mesh = plan_run_mesh(config, int(os.environ["WORLD_SIZE"]))
    with joined_groups(mesh, torch.device("cpu"), timeout_seconds=60) as groups:
        with wrong_gradient("layers.1.attention.wo.weight") if groups.rank == bad else nullcontext():
            outcome = bisect(config, eager_of(config), groups, steps=1, tolerance=1e-5)
        found: list[Outcome] = groups.all_gather_object(outcome)
        return found


def bisect_with_bad_stage(config: TrainerConfig, name: str, stage: int) -> list[Outcome]:
    """A pass is wrong on the ranks of one pipeline stage."""
    mesh = plan_run_mesh(config, int(os.environ["WORLD_SIZE"]))
    with joined_groups(mesh, torch.device("cpu"), timeout_seconds=60) as groups:
        with planted(name) if mesh.coordinate(groups.rank, Axis.PP) == stage else nullcontext():
            eager = eager_of(config)
            plain = eager.replace(parallelism=eager.parallelism.replace(pipeline_schedule="1f1b"))
            outcome = bisect(config, plain, groups, steps=1, tolerance=1e-5)
        found: list[Outcome] = groups.all_gather_object(outcome)
        return found
