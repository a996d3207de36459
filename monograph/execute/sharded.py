"""The step with explicit sharding: parameters are gathered by functions, unit by unit. A graph captures this form.

The model holds no parameters here (they stay on the meta device); the shards are the state, and every collective is
an op that a tracer sees.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from monograph.execute.base import MeshStep, StepSettings
from monograph.execute.remat import find_runner
from monograph.models.decoder import Block, Decoder, DecoderOutput
from monograph.parallel.groups import Groups
from monograph.parallel.param_table import ParamTable
from monograph.parallel.shard import ShardedCall
from monograph.parallel.start import fill_shards


class RematCall:
    """Blocks forget what they can compute again; their parameters are then gathered again as well."""

    def __init__(self, call: Callable[..., Any], runner: Callable[..., Any]) -> None:
        self.call, self.runner = call, runner

    def __call__(self, unit: nn.Module, *args: Any) -> Any:
        if isinstance(unit, Block) and torch.is_grad_enabled():
            return self.runner(self.call, unit, *args)
        return self.call(unit, *args)


class ShardedStep(MeshStep):
    """Eager execution over explicit shards."""

    def __init__(self, model: Decoder, table: ParamTable, groups: Groups, settings: StepSettings) -> None:
        super().__init__(model, table, groups)
        stored: dict[str, Any] = {"dtype": settings.dtype, "device": groups.device}
        self.parameters = {slot.name: nn.Parameter(torch.empty(slot.local_shape, **stored)) for slot in table}
        fill_shards(self.parameters, table, settings.starts, seed=settings.seed, rank=groups.rank)
        self.call: Callable[..., Any] = ShardedCall(
            model,
            table,
            self.parameters,
            compute_dtype=settings.compute_dtype,
            reduce_dtype=settings.reduce_dtype,
            reshard=settings.reshard,
        )
        runner = find_runner(settings.remat)
        if runner is not None:
            self.call = RematCall(self.call, runner)

    def forward(self, inputs: Mapping[str, Tensor], valid_tokens: Tensor) -> DecoderOutput:
        return self.model(**inputs, valid_tokens=valid_tokens, call=self.call)

    def backward(self, loss: Tensor) -> None:
        loss.backward()
