"""How a step computes, from the configuration of a run."""

from collections.abc import Mapping

import torch

from monograph.execute.base import StepSettings
from monograph.graph.facts import SavePolicy
from monograph.kernels.update import StateForm
from monograph.machine.device import Machine
from monograph.models.init import InitSpec
from monograph.train.config import TrainerConfig


def make_settings(config: TrainerConfig, init_specs: Mapping[str, InitSpec], machine: Machine) -> StepSettings:
    """How the step computes, besides the model and the mesh."""
    return StepSettings(
        dtype=getattr(torch, config.training.dtype),
        compute_dtype=getattr(torch, config.training.compute_dtype),
        reduce_dtype=getattr(torch, config.parallelism.reduce_dtype),
        reshard=config.parallelism.reshard_after_forward,
        init_specs=init_specs,
        seed=config.debug.seed,
        micro_batches=max(1, config.training.global_batch_size // config.training.local_batch_size),
        is_single_pass=config.plan_optimizer().is_single_pass,
        update_state=find_update_state(config),
        activations=SavePolicy(
            mode=config.activation_checkpoint.resolve(config.compile),
            save=config.activation_checkpoint.save,
            budget_gib=config.activation_checkpoint.budget_gib,
        ),
        compile=config.compile,
        passes=config.passes,
        machine=machine,
    )


def find_update_state(config: TrainerConfig) -> StateForm:
    """What the optimizer keeps of each parameter, for kernels that are built before the first update."""
    planned = config.plan_optimizer()
    moments = getattr(torch, planned.find_state_dtype(config.training.dtype))
    return StateForm(moments, has_remainders=planned.has_remainders)
