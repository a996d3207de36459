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
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor


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


def _make_examples() -> list[tuple[Tensor, ...]]:
    """Gradient, rows, weights, order and inverse of five tokens that chose two experts each."""
    order = torch.tensor([3, 0, 9, 5, 1, 7, 2, 8, 6, 4])
    rows = example_tensor(10, 6, seed=1)
    return [(example_tensor(5, 6), rows, example_tensor(5, 2, seed=2), order, order.argsort())]


SUM_ROWS = custom_op(
    "sum_rows(Tensor rows, Tensor places) -> Tensor",
    reference=reference_sum_rows,
    kernel=expert_rows_on_gpu.sum_rows,
    fake=lambda rows, indices: rows.new_empty(indices.shape[0], rows.shape[1]),
    examples=lambda: [(rows, inverse.unflatten(0, (-1, 2))) for _, rows, _, _, inverse in _make_examples()],
    decompose=True,
    prebuild=True,
).op
COMBINE_ROWS = custom_op(
    "combine_rows(Tensor rows, Tensor weights, Tensor inverse) -> Tensor",
    reference=reference_combine_rows,
    kernel=expert_rows_on_gpu.combine_rows,
    fake=lambda rows, weights, inverse: rows.new_empty(weights.shape[0], rows.shape[1]),
    examples=lambda: [(rows, weights, inverse) for _, rows, weights, _, inverse in _make_examples()],
    decompose=True,
    prebuild=True,
).op
COMBINE_ROWS_BACKWARD = custom_op(
    "combine_rows_backward(Tensor grad, Tensor rows, Tensor weights, Tensor order, Tensor inverse) -> (Tensor, Tensor)",
    reference=reference_combine_rows_backward,
    kernel=expert_rows_on_gpu.combine_rows_backward,
    fake=lambda grad, rows, weights, order, inverse: (rows.new_empty(rows.shape), weights.new_empty(weights.shape)),
    examples=_make_examples,
    decompose=True,
    prebuild=True,
).op
