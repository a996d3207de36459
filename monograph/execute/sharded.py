"""The step with explicit sharding: parameters are gathered by functions, unit by unit. A graph captures this form.

The model holds no parameters here (they stay on the meta device); the shards are the state, and every collective is
an op that a tracer sees.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from monograph.execute.base import MeshStep
from monograph.models.decoder import Decoder, DecoderOutput
from monograph.models.init import Start
from monograph.parallel.groups import Groups
from monograph.parallel.param_table import ParamTable
from monograph.parallel.shard import ShardedCall
from monograph.parallel.start import fill_shard


class ShardedStep(MeshStep):
    """Eager execution over explicit shards."""

    def __init__(
        self,
        model: Decoder,
        table: ParamTable,
        groups: Groups,
        *,
        dtype: torch.dtype,
        compute_dtype: torch.dtype,
        reduce_dtype: torch.dtype,
        reshard: bool,
        starts: Mapping[str, Start],
        seed: int,
    ) -> None:
        super().__init__(model, table, groups)
        self.parameters = {
            slot.name: nn.Parameter(torch.empty(slot.local_shape, dtype=dtype, device=groups.device)) for slot in table
        }
        for slot in table:
            fill_shard(self.parameters[slot.name], slot, starts[slot.name], seed=seed, rank=groups.rank)
        self.call = ShardedCall(
            model, table, self.parameters, compute_dtype=compute_dtype, reduce_dtype=reduce_dtype, reshard=reshard
        )

    def forward(self, inputs: Mapping[str, Tensor], valid_tokens: Tensor) -> DecoderOutput:
        return self.model(**inputs, valid_tokens=valid_tokens, call=self.call)

    def backward(self, loss: Tensor) -> None:
        loss.backward()
