"""Rows of the experts: copies of tokens on the way there, weighted sums on the way back, one pass over memory each.

Op by op, the way back gathers the rows, writes their products in fp32 and reads them again for the sum; its backward
does so twice: 15 ms of a step of deepseek_v3_bench_moe on an H200. Nothing is added atomically, and a token's choices
are summed in their order, so the same inputs give the same bits.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from monograph.compat.ops import cast
from monograph.kernels import expert_rows_on_gpu
from monograph.kernels.choose import is_fused

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define("sum_rows(Tensor rows, Tensor places) -> Tensor")
_LIBRARY.define("combine_rows(Tensor rows, Tensor weights, Tensor inverse) -> Tensor")
_LIBRARY.define(
    "combine_rows_backward(Tensor grad, Tensor rows, Tensor weights, Tensor order, Tensor inverse) -> (Tensor, Tensor)"
)


def spread_rows(x: Tensor, order: Tensor, inverse: Tensor, top_k: int, *, kernels: str = "auto") -> Tensor:
    """A copy of its token for every row, [tokens * top_k, dim]; `order` and `inverse` as in `dispatch.Routed`."""
    return SpreadRows.apply(x, order, inverse, top_k, is_fused(kernels, x))


def combine_rows(rows: Tensor, weights: Tensor, order: Tensor, inverse: Tensor, *, kernels: str = "auto") -> Tensor:
    """The sum of a token's rows, each times its weight [tokens, top_k]: [tokens, dim] in the rows' dtype."""
    return CombineRows.apply(rows, weights, order, inverse, is_fused(kernels, rows))


class SpreadRows(Function):
    """A copy of its token for every row; backward sums a token's rows in the order of its choices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor, top_k: int, fused: bool) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.top_k, ctx.fused = top_k, fused
        return x[order // top_k]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        if ctx.fused:
            return SUM_ROWS(grad, inverse.unflatten(0, (-1, ctx.top_k))), None, None, None, None
        return grad[inverse].unflatten(0, (-1, ctx.top_k)).sum(dim=1), None, None, None, None


class CombineRows(Function):
    """The weighted sum of a token's rows, accumulated in fp32; backward hands each row its share.

    A Function of its own because autograd would keep the products in fp32, several times the size of the rows.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, order: Tensor, inverse: Tensor, fused: bool) -> Tensor:
        ctx.save_for_backward(rows, weights, order, inverse)
        ctx.fused = fused
        return (COMBINE_ROWS if fused else reference_combine_rows)(rows, weights, inverse)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        backward = COMBINE_ROWS_BACKWARD if ctx.fused else reference_combine_rows_backward
        return *backward(grad, *ctx.saved_tensors), None, None, None


def reference_sum_rows(rows: Tensor, indices: Tensor) -> Tensor:
    """Sum the rows at each token's places [tokens, top_k]."""
    return rows[indices].sum(dim=1)


def reference_combine_rows(rows: Tensor, weights: Tensor, inverse: Tensor) -> Tensor:
    """Gather the rows of each token, and sum them weighted."""
    picked = rows[inverse].unflatten(0, tuple(weights.shape))
    return cast((picked * weights.unsqueeze(-1)).sum(dim=1), rows.dtype)


def reference_combine_rows_backward(
    grad: Tensor, rows: Tensor, weights: Tensor, order: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of rows and weights. A kernel needs the permutation one way, these ops both."""
    spread = grad[order // weights.shape[1]]
    of_rows = cast(spread * weights.flatten()[order].unsqueeze(-1), rows.dtype)
    shares = (cast(rows, weights.dtype) * spread).sum(dim=-1)
    return of_rows, shares[inverse].view_as(weights)


@torch.library.impl(_LIBRARY, "sum_rows", "CPU")
def _sum_rows_on_cpu(rows: Tensor, indices: Tensor) -> Tensor:
    return reference_sum_rows(rows, indices).contiguous()


@torch.library.impl(_LIBRARY, "combine_rows", "CPU")
def _combine_rows_on_cpu(rows: Tensor, weights: Tensor, inverse: Tensor) -> Tensor:
    return reference_combine_rows(rows, weights, inverse).contiguous()


@torch.library.impl(_LIBRARY, "combine_rows_backward", "CPU")
def _combine_rows_backward_on_cpu(
    grad: Tensor, rows: Tensor, weights: Tensor, order: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    of_rows, of_weights = reference_combine_rows_backward(grad, rows, weights, order, inverse)
    return of_rows.contiguous(), of_weights.contiguous()


@torch.library.impl(_LIBRARY, "sum_rows", "CUDA")
def _sum_rows_on_cuda(rows: Tensor, indices: Tensor) -> Tensor:
    return expert_rows_on_gpu.sum_rows(rows, indices)


@torch.library.impl(_LIBRARY, "combine_rows", "CUDA")
def _combine_rows_on_cuda(rows: Tensor, weights: Tensor, inverse: Tensor) -> Tensor:
    return expert_rows_on_gpu.combine_rows(rows, weights, inverse)


@torch.library.impl(_LIBRARY, "combine_rows_backward", "CUDA")
def _combine_rows_backward_on_cuda(
    grad: Tensor, rows: Tensor, weights: Tensor, order: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    return expert_rows_on_gpu.combine_rows_backward(grad, rows, weights, order, inverse)


@torch.library.register_fake("monograph::sum_rows", lib=_LIBRARY)
def _sum_rows_shape(rows: Tensor, indices: Tensor) -> Tensor:
    return rows.new_empty(indices.shape[0], rows.shape[1])


@torch.library.register_fake("monograph::combine_rows", lib=_LIBRARY)
def _combine_rows_shape(rows: Tensor, weights: Tensor, inverse: Tensor) -> Tensor:
    return rows.new_empty(weights.shape[0], rows.shape[1])


@torch.library.register_fake("monograph::combine_rows_backward", lib=_LIBRARY)
def _combine_rows_backward_shape(
    grad: Tensor, rows: Tensor, weights: Tensor, order: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    return rows.new_empty(rows.shape), weights.new_empty(weights.shape)


SUM_ROWS = torch.ops.monograph.sum_rows.default
COMBINE_ROWS = torch.ops.monograph.combine_rows.default
COMBINE_ROWS_BACKWARD = torch.ops.monograph.combine_rows_backward.default
