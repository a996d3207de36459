"""Sums over the mesh that surround a step: token counts, losses, gradient norms, expert loads."""

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from monograph.axes import Group
from monograph.compat.ops import count_members
from monograph.kernels.square_sum import add_square_parts, count_square_parts, square_parts
from monograph.parallel.collectives import all_reduce_over
from monograph.parallel.param_table import ParamTable

REDUCTIONS = frozenset((Group.BATCH, Group.WORLD, Group.SHARDS, Group.FSDP_SCATTER, Group.STAGE, Group.PP))
"""Groups that an update uses outside of its graph."""


def all_reduce_over_data(value: Tensor) -> Tensor:
    """The sum over everyone who reads other data; tensor-parallel peers read the same and count once."""
    return _sum(value, Group.BATCH)


def all_reduce_over_tokens(load: Tensor) -> Tensor:
    """The sum over everyone who routes other tokens: all ranks, since peers divide their tokens by sequence."""
    return _sum(load, Group.WORLD)


def compute_grad_norm(table: ParamTable, gradients: Mapping[str, Tensor]) -> Tensor:
    """The 2-norm of the whole gradient: shards are added up over their holders, replicas are counted once."""
    squares = table.squares(gradients)
    cut = _sum(squares[0], Group.SHARDS)
    replicated = _sum(squares[1], Group.FSDP_SCATTER)
    return torch.sqrt(cut + replicated)


def all_reduce_over_pipeline(value: Tensor) -> Tensor:
    """The sum over the ranks of a pipeline, of which one alone has a number other than zero: that number."""
    return _sum(value, Group.PP)


def compute_pipeline_grad_norm(table: ParamTable, own: Collection[str], gradients: Mapping[str, Tensor]) -> Tensor:
    """The same norm where each pipeline rank has some of the slots in `table`, and counts those in `own`.

    Partial sums of all slots are exchanged, and added in the order of the whole table: as on one device.
    """
    like = next(iter(gradients.values()))
    device = like.device
    counts = [count_square_parts(math.prod(slot.local_shape), like) for slot in table.trained]
    parts = [
        square_parts([gradients[slot.name]], device) if slot.name in own else torch.zeros(count, device=device)
        for slot, count in zip(table.trained, counts, strict=True)
    ]
    squares = all_reduce_over_pipeline(torch.cat(parts)).split(counts)
    sums = []
    for is_replicated in (False, True):
        chosen = [
            part
            for slot, part in zip(table.trained, squares, strict=True)
            if slot.is_replicated_over_tp == is_replicated
        ]
        sums.append(add_square_parts(torch.cat(chosen)) if chosen else torch.zeros((), device=device))
    return torch.sqrt(_sum(sums[0], Group.SHARDS) + _sum(sums[1], Group.FSDP_SCATTER))


def _sum(value: Tensor, group: Group) -> Tensor:
    """The sum over a group, in memory of its own.

    A rank that is alone in it has the sum already. To ask NCCL all the same makes a communicator first: half a second
    before the first step on one GPU.
    """
    return value.clone() if count_members(group.value) == 1 else all_reduce_over(value, group)
