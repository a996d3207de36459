"""How kernels write float8, in Triton: values scaled by largest magnitudes, as they are or transposed, with the scales.

Largest magnitudes are found, and meet in atomics, as the bits of fp32 without the sign: their order is that of
integers, and what is not a number is the largest of all. So it reaches the scale, as in torch; a GPU's maximum of
numbers would drop it. Every division is rounded once, as in `monograph.kernels.float8`.
"""

import torch

from monograph.compat.triton import tl, triton

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max
SMALLEST = 1e-12
"""As `monograph.kernels.float8.SMALLEST`."""
WHOLE_ROW = 16384
"""Columns that one program reads at once, at most."""
_PROGRAMS = 2048
"""That find largest magnitudes, about: enough to keep all memory busy; more would only have more atomics."""
_MOST_STEPS = 16
"""Tiles below each other that one program reads, at most."""


@triton.jit
def scale_values(value, amax, largest: tl.constexpr):
    """Values in fp32 whose largest magnitude becomes the largest number."""
    scaled = value * tl.div_rn(tl.full(amax.shape, largest, tl.float32), amax)
    return tl.clamp(scaled, -largest, largest, tl.PropagateNan.ALL)


@triton.jit
def find_scales(amax, largest: tl.constexpr):
    return tl.div_rn(amax, tl.full(amax.shape, largest, tl.float32))


@triton.jit
def find_magnitudes(value):
    """The bits of magnitudes of values in fp32."""
    return value.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def read_amax(bits, smallest: tl.constexpr):
    """Largest magnitudes in fp32, of which these are the bits."""
    return tl.maximum(bits.to(tl.float32, bitcast=True), smallest, tl.PropagateNan.ALL)


@triton.jit
def raise_amax(amax, index, bits, is_in):
    """Let largest magnitudes be at least these."""
    tl.atomic_max(amax + index, bits, is_in, sem="relaxed")


@triton.jit
def store_whole_rows(
    value, out, scales, row, column, rows, columns, out_row, largest: tl.constexpr, smallest: tl.constexpr
):
    """Write rows of which the program has every column; `row` is [rows, 1], `column` [1, columns]."""
    amax = read_amax(tl.max(find_magnitudes(value), 1, keep_dims=True), smallest)
    narrow = scale_values(value, amax, largest).to(out.dtype.element_ty)
    tl.store(out + row * out_row + column, narrow, (row < rows) & (column < columns))
    tl.store(scales + row, find_scales(amax, largest), row < rows)


@triton.jit
def store_tile(
    value,
    out,
    scales,
    amax,
    row,
    column,
    in_rows,
    in_columns,
    out_row,
    is_first,
    by: tl.constexpr,
    largest: tl.constexpr,
    smallest: tl.constexpr,
):
    """Write a tile, scaled by rows, or as a whole with `by` 0; one program of a row is the first and writes scales."""
    high = read_amax(tl.load(amax + row * by, in_rows, 0), smallest)
    narrow = scale_values(value, high[:, None], largest).to(out.dtype.element_ty)
    to = out + row.to(tl.int64)[:, None] * out_row + column[None, :]
    tl.store(to, narrow, in_rows[:, None] & in_columns[None, :])
    if is_first:
        tl.store(scales + row * by, find_scales(high, largest), in_rows)


@triton.jit
def store_tile_transposed(
    value,
    out,
    scales,
    amax,
    row,
    column,
    in_rows,
    in_columns,
    rows,
    is_first,
    by: tl.constexpr,
    largest: tl.constexpr,
    smallest: tl.constexpr,
):
    """Write a tile transposed, scaled by columns."""
    high = read_amax(tl.load(amax + column * by, in_columns, 0), smallest)
    narrow = scale_values(value, high[None, :], largest).to(out.dtype.element_ty)
    to = out + column.to(tl.int64)[:, None] * rows + row[None, :]
    tl.store(to, tl.trans(narrow), in_columns[:, None] & in_rows[None, :])
    if is_first:
        tl.store(scales + column * by, find_scales(high, largest), in_columns)


def count_warps(numbers: int) -> int:
    """Of a program that has so many numbers in its registers."""
    return min(16, max(1, numbers // 512))


def count_steps(tiles: int, programs: int = _PROGRAMS) -> int:
    """How many tiles a program reads: a power of two, so that few kernels are built."""
    steps = 1
    while steps < _MOST_STEPS and tiles // (2 * steps) >= programs:
        steps *= 2
    return steps
