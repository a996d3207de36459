"""RMS norm that writes float8, in Triton: whole rows are cast where they are computed, and columns are looked at.

Squares are added up in the order in which registers hold them. Triton would give every thread 16 numbers, to store as
many at once in float8, and norm_kernel has 8, as it loads them in bfloat16. So rows of the result begin at multiples of
`eighths` * 8, of which Triton knows no more: threads have 8 numbers, and the sum is that of norm_kernel.
"""

import torch
from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.float8_store_on_gpu import (
    E4M3,
    LARGEST,
    SMALLEST,
    count_steps,
    find_magnitudes,
    raise_amax,
    store_whole_rows,
)
from monograph.kernels.launch import launch
from monograph.kernels.norm_on_gpu import NUMBERS, SETTINGS, check_norm_inputs, compute_rstd, load_norm_input
from monograph.kernels.rows import as_rows


@triton.jit(do_not_specialize=("eighths",))
def float8_norm_kernel(
    x,
    other,
    weight,
    total,
    out,
    scales,
    column_amax,
    rstd,
    rows,
    columns,
    x_row,
    other_row,
    eps,
    eighths,
    has_other: tl.constexpr,
    steps: tl.constexpr,
    largest: tl.constexpr,
    smallest: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
):
    column = tl.arange(0, block)[None, :]
    w = tl.load(weight + column, column < columns, 0.0).to(tl.float32)
    highest = tl.zeros([together, block], tl.int32)
    for step in range(steps):
        row = ((tl.program_id(0).to(tl.int64) * steps + step) * together + tl.arange(0, together))[:, None]
        is_in = (row < rows) & (column < columns)
        value = load_norm_input(x + row * x_row, other + row * other_row, total, row, column, is_in, columns, has_other)
        scale = compute_rstd(value, columns, eps)
        tl.store(rstd + row, scale, row < rows)
        value = (value * scale * w).to(x.dtype.element_ty).to(tl.bfloat16).to(tl.float32)
        value = tl.where(is_in, value, 0.0)  # with an eps of 0 a row that is not there is no number
        store_whole_rows(value, out, scales, row, column, rows, columns, eighths * 8, largest, smallest)
        highest = tl.maximum(highest, find_magnitudes(value))
    column = tl.arange(0, block)
    raise_amax(column_amax, column, tl.max(highest, 0), column < columns)


def float8_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The norm in float8 with scales, the largest magnitude of every column, and one over the root mean square."""
    _, out, scales, amax, rstd = _forward(x, None, weight, eps)
    return out, scales, amax, rstd


def float8_add_norm(
    x: Tensor, other: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A sum, and the same of it."""
    return _forward(x, other, weight, eps)


def _forward(
    x: Tensor, other: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    check_norm_inputs(x, weight, other)
    assert x.shape[-1] % 8 == 0, "rows of the result begin at multiples of eight numbers"
    a = as_rows(x)
    b = a if other is None else as_rows(other)
    rows, columns = a.shape
    out, scales = x.new_empty((rows, columns), dtype=E4M3), x.new_empty((rows, 1), dtype=torch.float32)
    rstd = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    total = rstd if other is None else x.new_empty(x.shape)
    amax = torch.zeros(columns, dtype=torch.int32, device=x.device)
    if rows:
        block = triton.next_power_of_2(columns)
        together = max(1, NUMBERS // block)
        steps = count_steps(triton.cdiv(rows, together))
        launch(
            float8_norm_kernel,
            (triton.cdiv(rows, together * steps),),
            a,
            b,
            weight.contiguous(),
            total,
            out,
            scales,
            amax,
            rstd,
            rows,
            columns,
            a.stride(0),
            b.stride(0),
            eps,
            columns // 8,
            has_other=other is not None,
            steps=steps,
            largest=LARGEST,
            smallest=SMALLEST,
            together=together,
            block=block,
            num_warps=8,
            **SETTINGS,
        )
    return total, out, scales, amax.view(torch.float32), rstd
