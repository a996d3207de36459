"""The few collectives compute needs, each with its transpose as backward. Groups are logical names.

A collective that runs forward along an axis has exactly one right backward: gathering pieces is undone by summing
and scattering, an exchange by the exchange with its split sizes swapped. Written down once, here.
"""

from typing import Any

import torch
from torch import Tensor

from monograph.annotate import Role, annotate_role
from monograph.axes import Group
from monograph.compat.ops import all_gather, all_reduce, all_to_all, reduce_scatter


def all_gather_dim(value: Tensor, dim: int, size: int, group: Group) -> Tensor:
    """Concatenate every rank's piece along `dim`; no gradient of its own."""
    if dim == 0:
        return all_gather(value.contiguous(), size, group.value)
    stacked = all_gather(value.unsqueeze(0).contiguous(), size, group.value)
    shape = [*value.shape]
    shape[dim] *= size
    return stacked.movedim(0, dim).reshape(shape)


def reduce_scatter_dim(value: Tensor, dim: int, size: int, group: Group) -> Tensor:
    """Sum over the ranks and keep this rank's piece along `dim`; no gradient of its own."""
    if dim == 0:
        return reduce_scatter(value.contiguous(), size, group.value)
    pieces = value.unflatten(dim, (size, value.shape[dim] // size)).movedim(dim, 0)
    return reduce_scatter(pieces.flatten(0, 1).contiguous(), size, group.value)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int, size: int, group: Group) -> Tensor:
        ctx.where = (dim, size, group)
        return all_gather_dim(value, dim, size, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return reduce_scatter_dim(grads[0], *ctx.where), None, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int, size: int, group: Group) -> Tensor:
        ctx.where = (dim, size, group)
        return reduce_scatter_dim(value, dim, size, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return all_gather_dim(grads[0], *ctx.where), None, None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, received: list[int], sent: list[int], group: Group) -> Tensor:
        ctx.where = (sent, received, group)
        return all_to_all(rows.contiguous(), received, sent, group.value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        sent, received, group = ctx.where
        return all_to_all(grads[0].contiguous(), sent, received, group.value), None, None, None


def all_gather_autograd(value: Tensor, dim: int, size: int, group: Group) -> Tensor:
    """Every rank's piece along `dim`; backward sums the pieces' gradients and hands each rank its own."""
    with annotate_role(Role.SEQUENCE_ALL_GATHER):
        return _AllGather.apply(value, dim, size, group)


def reduce_scatter_autograd(value: Tensor, dim: int, size: int, group: Group) -> Tensor:
    """The sum over ranks, cut along `dim`; backward gathers the pieces' gradients."""
    with annotate_role(Role.SEQUENCE_REDUCE_SCATTER):
        return _ReduceScatter.apply(value, dim, size, group)


def all_to_all_autograd(rows: Tensor, received: list[int], sent: list[int], group: Group) -> Tensor:
    """Send `sent[i]` rows to rank i and receive `received[i]` from it; backward sends the gradients home."""
    with annotate_role(Role.TOKEN_ALL_TO_ALL):
        return _AllToAll.apply(rows, received, sent, group)


def all_reduce_over(value: Tensor, group: Group, operation: str = "sum") -> Tensor:
    """The sum (or max) over the ranks of a group, outside of any gradient."""
    return all_reduce(value, operation, group.value)
