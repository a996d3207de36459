"""The step with explicit sharding: parameters are gathered by functions, unit by unit. A graph captures this form.

The model holds no parameters here (they stay on the meta device); the shards are the state, and every collective is
an op that a tracer sees.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from monograph.compat.capture import fake_tensors
from monograph.execute.activation_checkpoint import find_runner
from monograph.execute.base import ModuleStep, StepSettings
from monograph.execute.gradients import Gradients
from monograph.models.model import Model, StepOutput
from monograph.parallel.chunks import find_chunks
from monograph.parallel.groups import Groups
from monograph.parallel.init_shards import fill_shards
from monograph.parallel.param_table import ParamTable
from monograph.parallel.shard import FsdpUnitRunner, call_function


class CheckpointedBlockRunner:
    """Blocks forget what they can recompute. Their parameters come from outside, and are kept or not as ever."""

    def __init__(self, runner: Callable[..., Any], blocks: Collection[nn.Module]) -> None:
        self.runner, self.blocks = runner, blocks

    def __call__(self, function: Callable[..., Any], unit: nn.Module, *args: Any) -> Any:
        if unit in self.blocks and torch.is_grad_enabled():
            return self.runner(function, unit, *args)
        return function(unit, *args)


def make_shards(table: ParamTable, groups: Groups, settings: StepSettings) -> dict[str, nn.Parameter]:
    """This rank's shards in their first state; a rank that is only fake has their shapes, and no memory."""
    with fake_tensors() if groups.is_fake else nullcontext():
        shards = {
            slot.name: torch.empty(slot.local_shape, dtype=settings.dtype, device=groups.device) for slot in table
        }
        parameters = {
            name: nn.Parameter(shard, requires_grad=not table[name].is_frozen) for name, shard in shards.items()
        }
    if not groups.is_fake:
        fill_shards(parameters, table, settings.init_specs, seed=settings.seed, rank=groups.rank)
    return parameters


class ShardedStep(ModuleStep):
    """Eager execution over explicit shards."""

    def __init__(self, model: Model, table: ParamTable, groups: Groups, settings: StepSettings) -> None:
        super().__init__(model, table, groups, seed=settings.seed)
        self.parameters = make_shards(table, groups, settings)
        self.leaves = {name: each.detach().requires_grad_(each.requires_grad) for name, each in self.parameters.items()}
        self.gradients = Gradients(self.trained, reduce_dtype=settings.reduce_dtype)
        runner = find_runner(settings.activations.mode)
        self.call = FsdpUnitRunner(
            model,
            table,
            self.leaves,
            compute_dtype=settings.compute_dtype,
            reduce_dtype=settings.reduce_dtype,
            reshard=settings.reshard,
            run=CheckpointedBlockRunner(runner, set(model.blocks().values())) if runner is not None else call_function,
            chunks=find_chunks(model, settings.compile.expert_overlap),
        )

    def forward(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> StepOutput:
        return self.model(**inputs, **scalars, call=self.call)

    def backward(self, objective: Tensor) -> None:
        """Autograd adds up in the dtype of its leaves, so these are others than the parameters, in the same memory: a
        sum may be wider. Each gradient is added as soon as it is there."""
        handles = [
            self.leaves[name].register_post_accumulate_grad_hook(partial(self.take_gradient, name))
            for name in self.trained
        ]
        objective.backward()
        for handle in handles:
            handle.remove()

    def take_gradient(self, name: str, leaf: Tensor) -> None:
        """Add a leaf's gradient to those of its parameter."""
        gradient, leaf.grad = leaf.grad, None
        assert gradient is not None
        self.gradients.add(name, gradient)
