"""What a rank does in the tests of plan: a file of its own, because the ranks import it."""

import os

import torch

from monograph.bench import make_batches
from monograph.parallel.groups import joined_groups
from monograph.run import build_step
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from tests.kit.peak import PeakOnRanks


def track_peak(config: TrainerConfig) -> int:
    """The most bytes of tensors that one micro-batch held on this rank, its inputs and state included."""
    mesh = plan_run_mesh(config, int(os.environ.get("WORLD_SIZE", "1")))
    with joined_groups(mesh, torch.device("cpu"), timeout_seconds=60) as groups:
        step = build_step(config, groups)
        batch = next(make_batches(config, step))
        inputs = step.source.inputs(batch.inputs, batch.scalars)  # type: ignore[attr-defined]
        known = [value for _, _, value in inputs.flat()]
        with PeakOnRanks(known) as tracked:
            step.run(*batch)
        step.close()
        return tracked.peak + sum(value.untyped_storage().nbytes() for value in known)
