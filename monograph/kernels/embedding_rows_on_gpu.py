"""Adding the rows of an embedding's gradient on a GPU, in the same order every time, and no slower where few ids occur.

Ids are sorted, so that equal ones follow each other, and cut into blocks of positions. A block sums the rows of each of
its ids; an id that lies in one block alone is added to the base at once. What belongs to an id of several blocks is
left as one partial sum a block, and added up by the block in which the id begins.

A block sums by a matmul with zeros and ones, and zero times infinity is no number: one row that is not finite makes
those of the other ids of its block not finite either, up to 31 of them. The step is broken anyway.
"""

import torch
from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.launch import launch
from monograph.kernels.rows import as_rows

POSITIONS = 32
"""Sorted positions of a block."""
WIDTH_BYTES = 256
"""Of a row that a program reads."""
_TOGETHER = 16
"""Partial sums that are read at a time."""


def add_embedding_rows(base: Tensor, grad: Tensor, ids: Tensor) -> Tensor:
    """A copy of the base with rows of the gradient added."""
    return add_embedding_rows_(base.clone(memory_format=torch.contiguous_format), grad, ids)


def add_embedding_rows_(base: Tensor, grad: Tensor, ids: Tensor) -> Tensor:
    """Add every row of the gradient to the base's row that its id names; ids beyond the base are left out."""
    assert base.is_contiguous(), "rows are written where they lie"
    rows, (vocabulary, channels) = as_rows(grad), base.shape
    tokens = rows.shape[0]
    assert rows.shape == (ids.numel(), channels), "every id has a row, as wide as the base's"
    if not tokens or not channels:
        return base
    # Before they are narrowed: an id beyond 32 bits would become another one.
    known = ids.reshape(-1).clamp(-1, vocabulary).to(torch.int32)
    ordered, order = torch.sort(known, stable=True)
    width = WIDTH_BYTES // rows.element_size()
    blocks, parts = triton.cdiv(tokens, POSITIONS), triton.cdiv(channels, width)
    partial = torch.empty((blocks, 2, channels), dtype=torch.float32, device=base.device)
    sizes = tokens, vocabulary, channels
    launch(
        sum_block_rows_kernel,
        (blocks, parts),
        *(base, rows, ordered, order, partial, *sizes, rows.stride(0)),
        positions=POSITIONS,
        width=width,
    )
    if blocks > 1:
        launch(
            add_partial_rows_kernel,
            (blocks - 1, parts),
            *(base, ordered, partial, *sizes),
            positions=POSITIONS,
            together=_TOGETHER,
            width=width,
        )
    return base


@triton.jit
def sum_block_rows_kernel(
    base,
    rows,
    ids,
    order,
    partial,
    tokens,
    vocabulary,
    channels,
    stride,
    positions: tl.constexpr,
    width: tl.constexpr,
):
    """Sum the rows of each id of a block, as a matmul with a matrix of zeros and ones."""
    first = tl.program_id(0) * positions
    end = tl.minimum(first + positions, tokens)
    column = tl.program_id(1) * width + tl.arange(0, width)
    inside = tl.arange(0, positions)
    is_there = first + inside < tokens
    own = tl.load(ids + first + inside, is_there, -1)
    before = tl.load(ids + first + inside - 1, is_there & (inside > 0), -1)
    number = tl.cumsum(((inside > 0) & (own != before)).to(tl.int32), 0)
    is_of = inside[:, None] == number[None, :]
    row = tl.load(order + first + inside, is_there, 0).to(tl.int64)
    x = tl.load(rows + row[:, None] * stride + column[None, :], is_there[:, None] & (column < channels)[None, :], 0.0)
    total = tl.dot(is_of.to(x.dtype), x, input_precision="ieee")
    # Ids of the sums; there may be fewer than positions.
    of = tl.max(tl.where(is_of, own[None, :], -1), 1)
    begin_id = tl.load(ids + first)
    end_id = tl.load(ids + end - 1)
    is_head = (of == begin_id) & (tl.load(ids + first - 1, first > 0, -1) == begin_id)
    is_tail = (of == end_id) & (tl.load(ids + end, end < tokens, -1) == end_id)
    is_used = ((of >= 0) & (of < vocabulary))[:, None] & (column < channels)[None, :]
    is_split = is_head | is_tail
    slot = tl.program_id(0) * 2 + tl.where(is_head, 0, 1)
    to = slot.to(tl.int64)[:, None] * channels + column[None, :]
    tl.store(partial + to, total, is_used & is_split[:, None])
    at = base + of.to(tl.int64)[:, None] * channels + column[None, :]
    is_whole = is_used & (is_split == 0)[:, None]
    old = tl.load(at, is_whole, 0.0).to(tl.float32)
    tl.store(at, (old + total).to(base.dtype.element_ty), is_whole)


@triton.jit
def add_partial_rows_kernel(
    base,
    ids,
    partial,
    tokens,
    vocabulary,
    channels,
    positions: tl.constexpr,
    together: tl.constexpr,
    width: tl.constexpr,
):
    """Add up what several blocks have of the id that begins in this one and goes on in the next."""
    block = tl.program_id(0)
    first = block * positions
    following = first + positions
    own = tl.load(ids + following - 1)
    is_begun = (tl.load(ids + first) != own) | (tl.load(ids + first - 1, first > 0, -1) != own)
    goes_on = (tl.load(ids + following, following < tokens, -1) == own) & (own >= 0) & (own < vocabulary)
    if is_begun & goes_on:
        column = tl.program_id(1) * width + tl.arange(0, width)
        is_in = column < channels
        total = tl.load(partial + (block * 2 + 1).to(tl.int64) * channels + column, is_in, 0.0)
        next = block + 1
        while goes_on:
            each = next + tl.arange(0, together)
            is_own = tl.load(ids + each * positions, each * positions < tokens, -1) == own
            at = (each * 2).to(tl.int64)[:, None] * channels + column[None, :]
            total += tl.sum(tl.load(partial + at, is_own[:, None] & is_in[None, :], 0.0), 0)
            next += together
            goes_on = tl.load(ids + next * positions, next * positions < tokens, -1) == own
        at = base + own.to(tl.int64) * channels + column
        tl.store(at, (tl.load(at, is_in, 0.0).to(tl.float32) + total).to(base.dtype.element_ty), is_in)
