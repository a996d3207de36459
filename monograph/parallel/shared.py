"""Sums over the mesh that surround a step: token counts, losses, gradient norms, expert loads."""

from collections.abc import Mapping

import torch
from torch import Tensor

from monograph.axes import Group
from monograph.parallel.collectives import total
from monograph.parallel.param_table import ParamTable


def total_over_batch(value: Tensor) -> Tensor:
    """The sum over everyone who reads other data; tensor-parallel peers read the same and count once."""
    return total(value, Group.BATCH)


def total_over_tokens(load: Tensor) -> Tensor:
    """The sum over everyone who routes other tokens: all ranks, since peers divide their tokens by sequence."""
    return total(load, Group.WORLD)


def compute_grad_norm(table: ParamTable, gradients: Mapping[str, Tensor]) -> Tensor:
    """The 2-norm of the whole gradient: shards are added up over their holders, replicas are counted once."""
    squares = table.squares(gradients)
    cut = total(squares[0], Group.SHARDS)
    replicated = total(squares[1], Group.FSDP_SCATTER)
    return torch.sqrt(cut + replicated)
