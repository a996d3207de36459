"""The kernels of the experts' rows, in Triton.

A program owns a token: it finds the token's rows, wherever they lie, and writes what only it writes. So nothing is
added atomically, and in backward the token's gradient is fetched once for all of its rows.
"""

from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.launch import launch
from monograph.kernels.rows import with_close_channels
from monograph.kernels.tuning import Tunable

_BLOCKS = [
    {"block": block, "num_warps": warps} for block, warps in ((1024, 4), (512, 2), (512, 4), (2048, 4), (2048, 8))
]
"""Columns of a token's sum that one program computes, at most."""
_SUM, _COMBINE = Tunable("sum_rows", *_BLOCKS), Tunable("combine_rows", *_BLOCKS)
_WIDE = 2048
"""Columns of a row that backward reads at a time."""


@triton.jit
def sum_kernel(rows, indices, out, rows_row, columns: tl.constexpr, top_k: tl.constexpr, block: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    is_in = column < columns
    total = tl.zeros([block], tl.float32)
    for choice in tl.static_range(top_k):
        index = tl.load(indices + token * top_k + choice).to(tl.int64)
        total += tl.load(rows + index * rows_row + column, is_in, 0.0).to(tl.float32)
    tl.store(out + token * columns + column, total.to(out.dtype.element_ty), is_in)


@triton.jit
def combine_kernel(
    rows, weights, indices, out, rows_row, columns: tl.constexpr, top_k: tl.constexpr, block: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    is_in = column < columns
    total = tl.zeros([block], tl.float32)
    for choice in tl.static_range(top_k):
        pair = token * top_k + choice
        index = tl.load(indices + pair).to(tl.int64)
        weight = tl.load(weights + pair).to(tl.float32)
        total += tl.load(rows + index * rows_row + column, is_in, 0.0).to(tl.float32) * weight
    tl.store(out + token * columns + column, total.to(out.dtype.element_ty), is_in)


@triton.jit
def combine_backward_kernel(
    grad,
    rows,
    weights,
    indices,
    of_rows,
    of_weights,
    grad_row,
    rows_row,
    columns: tl.constexpr,
    top_k: tl.constexpr,
    slots: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, slots)
    shares = tl.zeros([slots], tl.float32)
    for start in range(0, columns, block):
        column = start + tl.arange(0, block)
        is_in = column < columns
        g = tl.load(grad + token * grad_row + column, is_in, 0.0).to(tl.float32)
        for choice in tl.static_range(top_k):
            index = tl.load(indices + token * top_k + choice).to(tl.int64)
            weight = tl.load(weights + token * top_k + choice).to(tl.float32)
            x = tl.load(rows + index * rows_row + column, is_in, 0.0).to(tl.float32)
            tl.store(of_rows + index * columns + column, (g * weight).to(of_rows.dtype.element_ty), is_in)
            shares += tl.where(slot == choice, tl.sum(x * g, 0), 0.0)
    tl.store(of_weights + token * top_k + slot, shares.to(of_weights.dtype.element_ty), slot < top_k)


def sum_rows(rows: Tensor, indices: Tensor) -> Tensor:
    """Sum the rows at each token's places [tokens, top_k]."""
    (tokens, top_k), columns = indices.shape, rows.shape[1]
    out = rows.new_empty(tokens, columns)
    if out.numel():
        rows, settings = with_close_channels(rows), _SUM.choose(tokens, columns, top_k, rows.element_size())
        settings["block"] = min(settings["block"], triton.next_power_of_2(columns))
        grid = (tokens, triton.cdiv(columns, settings["block"]))
        settings |= {"columns": columns, "top_k": top_k}
        launch(sum_kernel, grid, rows, indices.contiguous(), out, rows.stride(0), **settings)
    return out


def combine_rows(rows: Tensor, weights: Tensor, inverse: Tensor) -> Tensor:
    """The weighted sum of each token's rows."""
    (tokens, top_k), columns = weights.shape, rows.shape[1]
    assert inverse.shape == (tokens * top_k,), "every choice of a token has a row"
    out = rows.new_empty(tokens, columns)
    if out.numel():
        rows, settings = with_close_channels(rows), _COMBINE.choose(tokens, columns, top_k, rows.element_size())
        settings["block"] = min(settings["block"], triton.next_power_of_2(columns))
        grid = (tokens, triton.cdiv(columns, settings["block"]))
        settings |= {"columns": columns, "top_k": top_k}
        launch(combine_kernel, grid, rows, weights.contiguous(), inverse.contiguous(), out, rows.stride(0), **settings)
    return out


def combine_rows_backward(
    grad: Tensor, rows: Tensor, weights: Tensor, _order: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of rows and weights."""
    (tokens, top_k), columns = weights.shape, rows.shape[1]
    assert inverse.shape == (tokens * top_k,) and grad.shape == (tokens, columns), "every choice of a token has a row"
    of_rows, of_weights = rows.new_empty(rows.shape), weights.new_empty(weights.shape)
    if of_rows.numel():
        grad, rows = with_close_channels(grad), with_close_channels(rows)
        launch(
            combine_backward_kernel,
            (tokens,),
            grad,
            rows,
            weights.contiguous(),
            inverse.contiguous(),
            of_rows,
            of_weights,
            grad.stride(0),
            rows.stride(0),
            columns=columns,
            top_k=top_k,
            slots=triton.next_power_of_2(top_k),
            block=min(_WIDE, triton.next_power_of_2(columns)),
        )
    return of_rows, of_weights
