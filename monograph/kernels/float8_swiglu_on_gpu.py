"""SwiGLU and its backward that write float8, in Triton: what a matmul would read back in bfloat16 is never written.

Forward has whole rows, so it finds their largest magnitudes and casts them at once. Backward also casts columns: a
first kernel finds the largest magnitudes, a second computes the same values again and writes them in both layouts.
Reading the inputs twice moves fewer bytes than writing the results in bfloat16, searching and casting them.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.float8_on_gpu import float8_cast
from monograph.kernels.float8_store_on_gpu import (
    E4M3,
    LARGEST,
    SMALLEST,
    WHOLE_ROW,
    count_steps,
    count_warps,
    find_magnitudes,
    raise_amax,
    store_tile,
    store_tile_transposed,
    store_whole_rows,
)
from monograph.kernels.launch import launch
from monograph.kernels.rows import as_rows, check_alike
from monograph.kernels.swiglu_on_gpu import SETTINGS, compute_swiglu, compute_swiglu_backward, swiglu
from monograph.kernels.tuning import Tunable

_NUMBERS = 2048
"""That one program of whole rows computes at a time: several rows, where these are short."""
_FORWARD = Tunable("float8_swiglu", {}, *({"num_warps": warps} for warps in (4, 8, 16)))


def _tiles(*candidates: tuple[int, int, int]) -> Iterator[dict[str, int]]:
    return ({"height": height, "width": width, "num_warps": warps} for height, width, warps in candidates)


_SEARCH = Tunable("float8_swiglu_backward_amax", *_tiles((32, 64, 8), (32, 64, 4), (64, 64, 8), (32, 128, 8)))
"""Rows and columns of the tiles in which largest magnitudes are found: few, so that several programs fit a
multiprocessor and one reads while another computes."""
_CAST = Tunable("float8_swiglu_backward_cast", *_tiles((64, 64, 8), (128, 32, 8), (128, 32, 4), (128, 64, 8)))
"""Rows and columns of the tiles that are cast: columns become rows, in pieces as long as a cache line."""


@triton.jit
def float8_swiglu_kernel(
    x,
    up,
    out,
    scales,
    rows,
    columns,
    x_row,
    up_row,
    largest: tl.constexpr,
    smallest: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * together + tl.arange(0, together))[:, None]
    column = tl.arange(0, block)[None, :]
    is_in = (row < rows) & (column < columns)
    a = tl.load(x + row * x_row + column, is_in, 0.0).to(tl.float32)
    b = tl.load(up + row * up_row + column, is_in, 0.0).to(tl.float32)
    value = compute_swiglu(a, b).to(x.dtype.element_ty).to(tl.bfloat16).to(tl.float32)
    store_whole_rows(value, out, scales, row, column, rows, columns, columns, largest, smallest)


@triton.jit
def load_swiglu_backward(grad, x, up, row, column, is_in, grad_row, x_row, up_row):
    """A tile of both gradients and of the gate, as bfloat16 would have them."""
    row = row.to(tl.int64)[:, None]
    column = column[None, :]
    g = tl.load(grad + row * grad_row + column, is_in, 0.0).to(tl.float32)
    a = tl.load(x + row * x_row + column, is_in, 0.0).to(tl.float32)
    b = tl.load(up + row * up_row + column, is_in, 0.0).to(tl.float32)
    by_x, by_up, gate = compute_swiglu_backward(g, a, b)
    by_x = by_x.to(x.dtype.element_ty).to(tl.bfloat16).to(tl.float32)
    by_up = by_up.to(x.dtype.element_ty).to(tl.bfloat16).to(tl.float32)
    return by_x, by_up, gate.to(x.dtype.element_ty).to(tl.bfloat16).to(tl.float32)


@triton.jit
def swiglu_backward_amax_kernel(
    grad,
    x,
    up,
    row_amax,
    column_amax,
    rows,
    columns,
    grad_row,
    x_row,
    up_row,
    height: tl.constexpr,
    width: tl.constexpr,
    steps: tl.constexpr,
):
    column = tl.program_id(1) * width + tl.arange(0, width)
    in_columns = column < columns
    high_x = tl.zeros([height, width], tl.int32)
    high_up = tl.zeros([height, width], tl.int32)
    high_gate = tl.zeros([height, width], tl.int32)
    for step in range(steps):
        row = (tl.program_id(0) * steps + step) * height + tl.arange(0, height)
        in_rows = row < rows
        is_in = in_rows[:, None] & in_columns[None, :]
        by_x, by_up, gate = load_swiglu_backward(grad, x, up, row, column, is_in, grad_row, x_row, up_row)
        of_x, of_up = find_magnitudes(by_x), find_magnitudes(by_up)
        raise_amax(row_amax, row, tl.max(tl.maximum(of_x, of_up), 1), in_rows)
        high_x = tl.maximum(high_x, of_x)
        high_up = tl.maximum(high_up, of_up)
        high_gate = tl.maximum(high_gate, find_magnitudes(gate))
    raise_amax(column_amax, column, tl.max(high_x, 0), in_columns)
    raise_amax(column_amax + columns, column, tl.max(high_up, 0), in_columns)
    raise_amax(column_amax + 2 * columns, column, tl.max(high_gate, 0), in_columns)


@triton.jit
def swiglu_backward_cast_kernel(
    grad,
    x,
    up,
    out,
    scales,
    transposed,
    transposed_scales,
    gates,
    gate_scales,
    row_amax,
    column_amax,
    rows,
    columns,
    grad_row,
    x_row,
    up_row,
    largest: tl.constexpr,
    smallest: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
):
    # One number for both: a grid has room for so many tiles in its first dim alone.
    across = (columns + width - 1) // width
    column_tile, row_tile = tl.program_id(0) % across, tl.program_id(0) // across
    column = column_tile * width + tl.arange(0, width)
    row = row_tile * height + tl.arange(0, height)
    in_r, in_c = row < rows, column < columns
    is_in = in_r[:, None] & in_c[None, :]
    by_x, by_up, gate = load_swiglu_backward(grad, x, up, row, column, is_in, grad_row, x_row, up_row)
    first = column_tile == 0
    wide = 2 * columns
    store_tile(by_x, out, scales, row_amax, row, column, in_r, in_c, wide, first, 1, largest, smallest)
    store_tile(by_up, out + columns, scales, row_amax, row, column, in_r, in_c, wide, first, 1, largest, smallest)
    first = row_tile == 0
    to, high, scale = transposed, column_amax, transposed_scales
    store_tile_transposed(by_x, to, scale, high, row, column, in_r, in_c, rows, first, 1, largest, smallest)
    to, high, scale = transposed + tl.cast(columns, tl.int64) * rows, column_amax + columns, transposed_scales + columns
    store_tile_transposed(by_up, to, scale, high, row, column, in_r, in_c, rows, first, 1, largest, smallest)
    to, high, scale = gates, column_amax + 2 * columns, gate_scales
    store_tile_transposed(gate, to, scale, high, row, column, in_r, in_c, rows, first, 1, largest, smallest)


def float8_swiglu(x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """silu(x) * up as a matrix in float8, and the scales of its rows."""
    check_alike(x, up)
    a, b = as_rows(x), as_rows(up)
    rows, columns = a.shape
    if columns > WHOLE_ROW:
        return float8_cast(swiglu(a, b), E4M3, True, False)
    out, scales = x.new_empty((rows, columns), dtype=E4M3), x.new_empty((rows, 1), dtype=torch.float32)
    if not rows:
        return out, scales
    block = triton.next_power_of_2(columns)
    together = max(1, _NUMBERS // block)
    settings = {"num_warps": count_warps(together * block), **_FORWARD.choose(rows, columns, x.element_size())}
    launch(
        float8_swiglu_kernel,
        (triton.cdiv(rows, together),),
        a,
        b,
        out,
        scales,
        rows,
        columns,
        a.stride(0),
        b.stride(0),
        largest=LARGEST,
        smallest=SMALLEST,
        together=together,
        block=block,
        **settings,
        **SETTINGS,
    )
    return out, scales


def float8_swiglu_backward(
    grad: Tensor, x: Tensor, up: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Both gradients side by side in float8, as they are and transposed, and the gate transposed, each with scales."""
    check_alike(grad, x, up)
    g, a, b = as_rows(grad), as_rows(x), as_rows(up)
    rows, columns = a.shape
    shapes = ((rows, 2 * columns), (2 * columns, rows), (columns, rows))
    numbers = [x.new_empty(shape, dtype=E4M3) for shape in shapes]
    scales = [x.new_empty((shape[0], 1), dtype=torch.float32) for shape in shapes]
    if not rows:
        return numbers[0], scales[0], numbers[1], scales[1].zero_(), numbers[2], scales[2].zero_()
    amax = torch.zeros(rows + 3 * columns, dtype=torch.int32, device=x.device)
    given = (rows, columns, g.stride(0), a.stride(0), b.stride(0))
    tile = _SEARCH.choose(rows, columns, x.element_size())
    across = triton.cdiv(columns, tile["width"])
    steps = count_steps(triton.cdiv(rows, tile["height"]) * across)
    launch(
        swiglu_backward_amax_kernel,
        (triton.cdiv(rows, tile["height"] * steps), across),
        g,
        a,
        b,
        amax,
        amax[rows:],
        *given,
        steps=steps,
        **tile,
        **SETTINGS,
    )
    tile = _CAST.choose(rows, columns, x.element_size())
    results = [each for pair in zip(numbers, scales, strict=True) for each in pair]
    launch(
        swiglu_backward_cast_kernel,
        (triton.cdiv(columns, tile["width"]) * triton.cdiv(rows, tile["height"]),),
        g,
        a,
        b,
        *results,
        amax,
        amax[rows:],
        *given,
        largest=LARGEST,
        smallest=SMALLEST,
        **tile,
        **SETTINGS,
    )
    return results[0], results[1], results[2], results[3], results[4], results[5]
