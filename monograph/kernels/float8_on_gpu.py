"""Casts to float8 on a GPU, in Triton: largest magnitudes in one read, both layouts written in a second.

Largest magnitudes of tiles meet in atomics; a maximum does not depend on the order, so results are the same in every
run, and they are those of the reference bit for bit. A row that fits one program is read once.
"""

import torch
from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.float8_store_on_gpu import (
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
from monograph.kernels.rows import with_close_channels
from monograph.kernels.tuning import Tunable

_NUMBERS = 2048
"""That one program of whole rows reads at a time: several rows, where these are short."""
_FEWEST = 512
"""Programs that cast whole rows and find largest magnitudes of columns, at least."""
_WIDTH = 128
"""Columns of the tiles in which largest magnitudes are found."""
_ROWS = Tunable("float8_cast_rows", {}, *({"num_warps": warps} for warps in (4, 8, 16)))
_SEARCH = Tunable(
    "float8_amax",
    *({"height": height, "num_warps": warps} for height, warps in ((128, 8), (64, 8), (32, 4), (64, 4), (32, 8))),
)
"""height: rows of a tile."""
_TILES = Tunable(
    "float8_cast_tiles",
    *({"tile": tile, "num_warps": warps} for tile, warps in ((64, 4), (128, 8), (64, 8), (128, 16))),
)
"""tile: rows and columns of what is transposed at once."""


@triton.jit
def cast_rows_kernel(
    x,
    out,
    scales,
    column_amax,
    rows,
    columns,
    x_batch,
    x_row,
    has_amax: tl.constexpr,
    steps: tl.constexpr,
    largest: tl.constexpr,
    smallest: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, block)[None, :]
    x += batch * x_batch
    out += batch * rows * columns
    scales += batch * rows
    highest = tl.zeros([together, block], tl.int32)
    for step in range(steps):
        row = ((tl.program_id(0).to(tl.int64) * steps + step) * together + tl.arange(0, together))[:, None]
        value = tl.load(x + row * x_row + column, (row < rows) & (column < columns), 0.0)
        value = value.to(tl.bfloat16).to(tl.float32)
        store_whole_rows(value, out, scales, row, column, rows, columns, columns, largest, smallest)
        if has_amax:
            highest = tl.maximum(highest, find_magnitudes(value))
    if has_amax:
        column = tl.arange(0, block)
        raise_amax(column_amax + batch * columns, column, tl.max(highest, 0), column < columns)


@triton.jit
def amax_kernel(
    x,
    row_amax,
    column_amax,
    rows,
    columns,
    x_batch,
    x_row,
    of_rows: tl.constexpr,
    of_columns: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    steps: tl.constexpr,
):
    batch = tl.program_id(2).to(tl.int64)
    column = tl.program_id(1) * width + tl.arange(0, width)
    in_columns = column < columns
    highest = tl.zeros([height, width], tl.int32)
    for step in range(steps):
        row = (tl.program_id(0) * steps + step) * height + tl.arange(0, height)
        in_rows = row < rows
        at = x + batch * x_batch + row.to(tl.int64)[:, None] * x_row + column[None, :]
        value = tl.load(at, in_rows[:, None] & in_columns[None, :], 0.0)
        magnitude = find_magnitudes(value.to(tl.bfloat16).to(tl.float32))
        highest = tl.maximum(highest, magnitude)
        if of_rows:
            raise_amax(row_amax + batch * rows, row, tl.max(magnitude, 1), in_rows)
    if of_columns:
        raise_amax(column_amax + batch * columns, column, tl.max(highest, 0), in_columns)
    if not of_rows and not of_columns:
        tl.atomic_max(row_amax, tl.max(tl.max(highest, 0), 0), sem="relaxed")


@triton.jit
def cast_tiles_kernel(
    x,
    out,
    transposed,
    scales,
    transposed_scales,
    row_amax,
    column_amax,
    rows,
    columns,
    x_batch,
    x_row,
    has_out: tl.constexpr,
    has_transposed: tl.constexpr,
    by: tl.constexpr,
    largest: tl.constexpr,
    smallest: tl.constexpr,
    tile: tl.constexpr,
):
    batch = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    in_rows, in_columns = row < rows, column < columns
    is_in = in_rows[:, None] & in_columns[None, :]
    at = x + batch * x_batch + row.to(tl.int64)[:, None] * x_row + column[None, :]
    value = tl.load(at, is_in, 0.0).to(tl.bfloat16).to(tl.float32)
    is_first = tl.program_id(1) == 0
    if has_out:
        scales += batch * rows * by
        amax, to = row_amax + batch * rows * by, out + batch * rows * columns
        store_tile(value, to, scales, amax, row, column, in_rows, in_columns, columns, is_first, by, largest, smallest)
    is_first = tl.program_id(0) == 0
    if has_transposed:
        scales = transposed_scales + batch * columns * by
        amax, to = column_amax + batch * columns * by, transposed + batch * rows * columns
        store_tile_transposed(
            value, to, scales, amax, row, column, in_rows, in_columns, rows, is_first, by, largest, smallest
        )


def float8_cast(x: Tensor, dtype: torch.dtype, is_rowwise: bool, is_transposed: bool) -> tuple[Tensor, Tensor]:
    """x, or its last two dims transposed, in float8, and the scales."""
    if is_rowwise and not is_transposed and x.shape[-1] <= WHOLE_ROW:
        return _cast_rows(x, dtype, None)
    out, scales = _cast_tiles(x, dtype, is_rowwise, has_out=not is_transposed, has_transposed=is_transposed)
    return out, scales


def float8_cast_both(x: Tensor, dtype: torch.dtype, is_rowwise: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x in float8 as it is, and transposed, each with its scales."""
    out, scales, transposed, transposed_scales = _cast_tiles(x, dtype, is_rowwise, has_out=True, has_transposed=True)
    return out, scales, transposed, transposed_scales


def float8_cast_amax(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x in float8 with scales of rows, and the largest magnitude of every column."""
    amax = torch.zeros((*x.shape[:-2], x.shape[-1]), dtype=torch.int32, device=x.device)
    if x.shape[-1] <= WHOLE_ROW:
        out, scales = _cast_rows(x, dtype, amax)
    else:
        out, scales = float8_cast(x, dtype, True, False)
        flat = as_stack(x)
        if x.numel():
            _search(flat, amax, amax, of_rows=False, of_columns=True)
    return out, scales, amax.view(torch.float32)


def float8_cast_transposed(x: Tensor, amax: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x transposed in float8, and the scales, of which the largest magnitudes are known."""
    out, scales = _cast_tiles(x, dtype, True, has_out=False, has_transposed=True, known=amax.contiguous())
    return out, scales


def float8_amax(x: Tensor) -> Tensor:
    """The largest magnitude."""
    amax = torch.zeros(1, dtype=torch.int32, device=x.device)
    if x.numel():
        _search(as_stack(x), amax, amax, of_rows=False, of_columns=False)
    return amax.view(torch.float32)


def float8_cast_known(x: Tensor, amax: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x in float8 and its scale, of which the largest magnitude is known."""
    out, scale = _cast_tiles(x, dtype, False, has_out=True, has_transposed=False, known=amax.contiguous())
    return out, scale


def as_stack(x: Tensor) -> Tensor:
    """[matrices, rows, columns], of which every row is contiguous; whatever dims come before the last two are one."""
    assert x.dim() > 1, "what is cast is a matrix, or a stack of them"
    x = with_close_channels(x)
    return x.unsqueeze(0) if x.dim() == 2 else x.flatten(0, -3)


def _cast_rows(x: Tensor, dtype: torch.dtype, amax: Tensor | None) -> tuple[Tensor, Tensor]:
    out = x.new_empty(x.shape, dtype=dtype)
    scales = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    if not out.numel():
        return out, scales.zero_()
    flat = as_stack(x)
    batch, rows, columns = flat.shape
    block = triton.next_power_of_2(columns)
    together = max(1, _NUMBERS // block)
    steps = 1 if amax is None else count_steps(triton.cdiv(rows, together) * batch, _FEWEST)
    sizes = (batch, rows, columns, x.element_size(), int(amax is not None))
    settings = {"num_warps": count_warps(together * block), **_ROWS.choose(*sizes)}
    launch(
        cast_rows_kernel,
        (triton.cdiv(rows, together * steps), batch),
        flat,
        out,
        scales,
        scales if amax is None else amax,
        rows,
        columns,
        *flat.stride()[:2],
        has_amax=amax is not None,
        steps=steps,
        largest=torch.finfo(dtype).max,
        smallest=SMALLEST,
        together=together,
        block=block,
        **settings,
    )
    return out, scales


def _search(flat: Tensor, row_amax: Tensor, column_amax: Tensor, *, of_rows: bool, of_columns: bool) -> None:
    """Find largest magnitudes of rows and columns, or of the whole in the first number."""
    batch, rows, columns = flat.shape
    across = triton.cdiv(columns, _WIDTH)
    settings = _SEARCH.choose(batch, rows, columns, flat.element_size(), int(of_rows), int(of_columns))
    steps = count_steps(triton.cdiv(rows, settings["height"]) * across * batch)
    launch(
        amax_kernel,
        (triton.cdiv(rows, settings["height"] * steps), across, batch),
        flat,
        row_amax,
        column_amax,
        rows,
        columns,
        *flat.stride()[:2],
        of_rows=of_rows,
        of_columns=of_columns,
        width=_WIDTH,
        steps=steps,
        **settings,
    )


def _cast_tiles(
    x: Tensor,
    dtype: torch.dtype,
    is_rowwise: bool,
    *,
    has_out: bool,
    has_transposed: bool,
    known: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The results that are asked for: numbers and scales as they are, then transposed.

    `known`: the largest magnitudes of columns, or, with one scale, of everything.
    """
    flat = as_stack(x)
    batch, rows, columns = flat.shape
    if known is not None:
        assert known.shape == ((*x.shape[:-2], columns) if is_rowwise else (1,)), "one number for what has one scale"
    results = []
    for shape in [(rows, columns)] * has_out + [(columns, rows)] * has_transposed:
        results.append(x.new_empty((*x.shape[:-2], *shape), dtype=dtype))
        sizes = (*x.shape[:-2], shape[0], 1) if is_rowwise else (1, 1)
        results.append(x.new_empty(sizes, dtype=torch.float32))
    if not x.numel():
        for scales in results[1::2]:
            if known is None:
                scales.zero_()
            else:  # a shard without numbers: what other ranks have of the whole is read with this scale
                amax = known.clamp(min=SMALLEST)
                scales.copy_((amax / torch.full_like(amax, torch.finfo(dtype).max)).view(scales.shape))
        return tuple(results)
    if known is None:
        count = batch * (rows * has_out + columns * has_transposed) if is_rowwise else 1
        of_rows = torch.zeros(count, dtype=torch.int32, device=x.device)
        of_columns = of_rows[batch * rows :] if is_rowwise and has_out and has_transposed else of_rows
        wanted = {"of_rows": is_rowwise and has_out, "of_columns": is_rowwise and has_transposed}
        _search(flat, of_rows, of_columns, **wanted)
    else:
        of_rows = of_columns = known.view(torch.int32)
    settings = _TILES.choose(batch, rows, columns, x.element_size(), int(has_out), int(has_transposed))
    launch(
        cast_tiles_kernel,
        (triton.cdiv(rows, settings["tile"]), triton.cdiv(columns, settings["tile"]), batch),
        flat,
        results[0],
        results[-2],
        results[1],
        results[-1],
        of_rows,
        of_columns,
        rows,
        columns,
        *flat.stride()[:2],
        has_out=has_out,
        has_transposed=has_transposed,
        by=int(is_rowwise),
        largest=torch.finfo(dtype).max,
        smallest=SMALLEST,
        **settings,
    )
    return tuple(results)
