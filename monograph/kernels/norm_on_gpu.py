"""The kernels of RMS norm, in Triton.

The weight's gradient is a sum over all rows: every program adds up its own rows, in their order, and torch adds up the
programs, whose number depends on the rows alone.
"""

import torch
from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.launch import launch
from monograph.kernels.rows import as_rows, check_alike, find_spaced_rows

NUMBERS = 2048
"""That one program of the forward reads at a time: several rows, where these are short."""
_PROGRAMS = 1056
"""Of a backward, at most: eight on every processor of a large GPU."""
SETTINGS = {"enable_fp_fusion": False}
"""A product and a sum are rounded one after the other, as two ops would do it: so fusing them changes no bit."""


@triton.jit
def find_row(row, inner, outer_step, step):
    """Where a row begins (`SpacedRows`); an `inner` of 1 is known when the kernel is built, and divides nothing."""
    return row // inner * outer_step + row % inner * step


@triton.jit
def load_norm_input(x, other, total, row, column, is_in, columns, has_other: tl.constexpr):
    """Rows in fp32, or their sum with other rows, which is written; `x` and `other` point to where rows begin."""
    value = tl.load(x + column, is_in, 0.0).to(tl.float32)
    if has_other:
        value = value + tl.load(other + column, is_in, 0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + row * columns + column, rounded, is_in)
        value = rounded.to(tl.float32)
    return value


@triton.jit
def compute_rstd(value, columns, eps):
    return tl.rsqrt(tl.sum(value * value, 1, keep_dims=True) / columns + eps)


@triton.jit
def norm_kernel(
    x,
    other,
    weight,
    total,
    out,
    rstd,
    rows,
    columns,
    x_inner,
    x_outer,
    x_row,
    other_row,
    eps,
    has_other: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * together + tl.arange(0, together))[:, None]
    column = tl.arange(0, block)[None, :]
    is_in = (row < rows) & (column < columns)
    x += find_row(row, x_inner, x_outer, x_row)
    value = load_norm_input(x, other + row * other_row, total, row, column, is_in, columns, has_other)
    scale = compute_rstd(value, columns, eps)
    w = tl.load(weight + column, column < columns, 0.0).to(tl.float32)
    tl.store(out + row * columns + column, (value * scale * w).to(out.dtype.element_ty), is_in)
    tl.store(rstd + row, scale, row < rows)


@triton.jit
def norm_backward_kernel(
    grad,
    x,
    weight,
    rstd,
    other,
    of_x,
    partial,
    again,
    rows,
    columns,
    grad_inner,
    grad_outer,
    grad_row,
    x_inner,
    x_outer,
    x_row,
    other_row,
    tiles: tl.constexpr,
    has_other: tl.constexpr,
    has_again: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
):
    program = tl.program_id(0)
    column = tl.arange(0, block)[None, :]
    w = tl.load(weight + column, column < columns, 0.0).to(tl.float32)
    found = tl.zeros([together, block], tl.float32)
    for tile in range(tiles):
        row = ((program.to(tl.int64) * tiles + tile) * together + tl.arange(0, together))[:, None]
        is_in = (row < rows) & (column < columns)
        g = tl.load(grad + find_row(row, grad_inner, grad_outer, grad_row) + column, is_in, 0.0).to(tl.float32)
        value = tl.load(x + find_row(row, x_inner, x_outer, x_row) + column, is_in, 0.0).to(tl.float32)
        scale = tl.load(rstd + row, row < rows, 0.0)
        if has_other:  # read with the rest, not after the sums that the program waits for
            more = tl.load(other + row * other_row + column, is_in, 0.0).to(tl.float32)
        scaled = value * scale
        if has_again:
            tl.store(again + row * columns + column, (scaled * w).to(again.dtype.element_ty), is_in)
        inner = g * w
        found += g * scaled
        change = (inner - scaled * (tl.sum(inner * scaled, 1, keep_dims=True) / columns)) * scale
        to = of_x + row * columns + column
        if has_other:
            change = change.to(of_x.dtype.element_ty).to(tl.float32) + more
        tl.store(to, change.to(of_x.dtype.element_ty), is_in)
    sums = tl.sum(found, 0, keep_dims=True)
    tl.store(partial + program * columns + column, sums, column < columns)


def check_norm_inputs(x: Tensor, weight: Tensor, *others: Tensor | None) -> None:
    """Refuse a weight that has not one number for each column, and values that are to be added but are not like x: the
    sum would have another dtype."""
    added = [each for each in others if each is not None]
    check_alike(x, *added)
    assert weight.shape == x.shape[-1:] and all(each.dtype is x.dtype for each in added), "sums are written like x"


def norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm, and one over the root mean square of every row."""
    _, out, rstd = _forward(x, None, weight, eps)
    return out, rstd


def add_norm(x: Tensor, other: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """A sum, its norm, and one over the root mean square of every row."""
    return _forward(x, other, weight, eps)


def _forward(x: Tensor, other: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    check_norm_inputs(x, weight, other)
    out, rstd = x.new_empty(x.shape), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    total = out if other is None else x.new_empty(x.shape)
    if out.numel():
        a = find_spaced_rows(x)
        b = None if other is None else as_rows(other)
        columns = x.shape[-1]
        block = triton.next_power_of_2(columns)
        together = max(1, NUMBERS // block)
        launch(
            norm_kernel,
            (triton.cdiv(a.rows, together),),
            a.values,
            a.values if b is None else b,
            weight.contiguous(),
            total,
            out,
            rstd,
            a.rows,
            columns,
            *a.place,
            0 if b is None else b.stride(0),
            eps,
            has_other=other is not None,
            together=together,
            block=block,
            num_warps=8,
            **SETTINGS,
        )
    return total, out, rstd


def norm_backward(grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, other: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of x (plus `other`) and of the weight."""
    of_x, of_weight, _ = _backward(grad, x, weight, rstd, other, has_again=False)
    return of_x, of_weight


def norm_backward_recompute(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, other: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and the norm once more."""
    return _backward(grad, x, weight, rstd, other, has_again=True)


def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, other: Tensor | None, *, has_again: bool
) -> tuple[Tensor, Tensor, Tensor]:
    check_norm_inputs(x, weight, other)
    check_alike(grad, x)
    assert tuple(rstd.shape) == (*x.shape[:-1], 1), "every row has one"
    of_x = x.new_empty(x.shape)
    again = x.new_empty(x.shape) if has_again else of_x
    if not of_x.numel():
        return of_x, torch.zeros_like(weight), again
    g, value = find_spaced_rows(grad), find_spaced_rows(x)
    more = None if other is None else as_rows(other)
    rows, columns = value.rows, x.shape[-1]
    block = triton.next_power_of_2(columns)
    together = max(1, NUMBERS // block)
    tiles = triton.cdiv(rows, together * _PROGRAMS)
    programs = triton.cdiv(rows, together * tiles)
    partial = torch.empty(programs, columns, dtype=torch.float32, device=x.device)
    launch(
        norm_backward_kernel,
        (programs,),
        g.values,
        value.values,
        weight.contiguous(),
        rstd.contiguous(),
        value.values if more is None else more,
        of_x,
        partial,
        again,
        rows,
        columns,
        *g.place,
        *value.place,
        0 if more is None else more.stride(0),
        tiles=tiles,
        has_other=other is not None,
        has_again=has_again,
        together=together,
        block=block,
        num_warps=8,
        **SETTINGS,
    )
    return of_x, partial.sum(0).to(weight.dtype), again
