"""Sharded parameters as explicit functions over the table: cast, gather, use; and back: cast, scatter, sum.

A unit's parameters are gathered when the unit runs, by functional collectives that a tracer sees like any other op.
The gradient takes the same way back: to the reduce dtype, summed and scattered over the fsdp axis, and summed over
the axes that replicate the parameter.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monograph.axes import Group
from monograph.parallel.collectives import gather_dim, scatter_dim, total
from monograph.parallel.param_table import ParamTable, Slot


class _Gather(torch.autograd.Function):
    """The piece of a parameter that compute sees, from this rank's shard of it."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, slot: Slot, compute: torch.dtype, reduce: torch.dtype) -> Tensor:
        ctx.where = (slot, reduce)
        return gather_piece(shard.to(compute), slot)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        slot, reduce = ctx.where
        return reduce_gradient(grads[0].to(reduce), slot), None, None, None


def gather_piece(shard: Tensor, slot: Slot) -> Tensor:
    """All ranks' shards along the fsdp axis, without the padding at the end."""
    group = Group.EFSDP_GATHER if slot.is_expert else Group.FSDP_GATHER
    dim = slot.shard.dim
    whole = gather_dim(shard, dim, slot.mesh.degree(slot.shard.axis), group)
    size = slot.piece_shape[dim]
    return whole if whole.shape[dim] == size else whole.narrow(dim, 0, size)


def reduce_gradient(gradient: Tensor, slot: Slot) -> Tensor:
    """This rank's shard of the gradient's sum over every rank that has a part of it."""
    mesh, dim, axis = slot.mesh, slot.shard.dim, slot.shard.axis
    missing = slot.local_shape[dim] * mesh.degree(axis) - gradient.shape[dim]
    if missing:
        gradient = F.pad(gradient, [0, 0] * (gradient.ndim - 1 - dim) + [0, missing])
    group = Group.EFSDP_SCATTER if slot.is_expert else Group.FSDP_SCATTER
    shard = scatter_dim(gradient, dim, mesh.degree(axis), group)
    if slot.is_replicated_over_tp:
        shard = total(shard, Group.TP_GRADS)
    return total(shard, Group.DP_REPLICATE)


class ShardedCall:
    """Runs one unit of a model with parameters gathered from `state`; the model itself holds none."""

    def __init__(
        self,
        model: nn.Module,
        table: ParamTable,
        state: Mapping[str, Tensor],
        *,
        compute_dtype: torch.dtype,
        reduce_dtype: torch.dtype,
    ) -> None:
        self.state = state
        self.dtypes = (compute_dtype, reduce_dtype)
        self.slots = {
            unit: [(name, slot) for name, slot in table.of_unit(path)]
            for path, unit in model.named_modules()
            if table.of_unit(path) and (path in ("embedding", "head") or is_block(path))
        }

    def __call__(self, unit: nn.Module, *args: Any) -> Any:
        pieces = {name: _Gather.apply(self.state[slot.name], slot, *self.dtypes) for name, slot in self.slots[unit]}
        return torch.func.functional_call(unit, pieces, args)


def is_block(path: str) -> bool:
    """Whether a module path names one of the repeated blocks."""
    parts = path.split(".")
    return len(parts) == 2 and parts[0] == "layers"
