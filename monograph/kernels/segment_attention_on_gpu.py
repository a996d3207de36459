"""Attention over segments, in Triton: packed documents, windows, chunks and slices of a sequence.

One program computes a block of queries of one head, and reads only the blocks of keys that some of them see. Nothing
depends on how many segments the table has room for. Sums stand in fp32 and no sum crosses programs, so results are
deterministic.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.attention_tiles import Tiles, choose_tiles
from monograph.kernels.launch import launch
from monograph.kernels.tuning import Tunable
from monograph.kernels.visible_keys_on_gpu import find_keys, find_loop

LOG2_E = 1.4426950408889634
LEAST = 16
"""Channels that the tensor cores multiply at once."""
_STAGES = Tunable("attention", {}, *({"num_stages": stages} for stages in (2, 3, 4)))


@triton.jit
def load_tile(
    base,
    row,
    n_rows,
    row_stride,
    channels: tl.constexpr,
    width: tl.constexpr,
    offset: tl.constexpr,
    is_masked: tl.constexpr,
):
    """[rows, width] from channel `offset` on; zeros beyond the last row, if masked, and beyond the last channel."""
    column = offset + tl.arange(0, width)
    at = base + row.to(tl.int64)[:, None] * row_stride + column[None, :]
    if offset + width > channels:
        is_in = column[None, :] < channels
        if is_masked:
            is_in = is_in & (row[:, None] < n_rows)
        return tl.load(at, is_in, 0.0)
    elif is_masked:
        return tl.load(at, row[:, None] < n_rows, 0.0)
    else:
        return tl.load(at)


@triton.jit
def tanh(x):
    """The hyperbolic tangent, within 1e-7."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def attend_blocks(
    out, most, total, q, q_rest, k, v, first, end, start, stop, n_keys, k_row, v_row, channels: tl.constexpr,
    value_channels: tl.constexpr, scale, cap, has_cap: tl.constexpr, is_masked: tl.constexpr, block: tl.constexpr,
    width: tl.constexpr, rest_width: tl.constexpr, value_width: tl.constexpr,
):  # fmt: skip
    """Go on with the softmax over the keys from `start` to `stop`; `scale`, or the cap, includes log2(e)."""
    for here in range(start, stop, block):
        key = here + tl.arange(0, block)
        scores = tl.dot(q, tl.trans(load_tile(k, key, n_keys, k_row, channels, width, 0, is_masked)))
        if rest_width:
            more = load_tile(k, key, n_keys, k_row, channels, rest_width, width, is_masked)
            scores = tl.dot(q_rest, tl.trans(more), scores)
        scores = scores * scale
        if has_cap:
            scores = cap * tanh(scores)
        if is_masked:
            is_seen = (key[None, :] >= first[:, None]) & (key[None, :] < end[:, None])
            scores = tl.where(is_seen, scores, float("-inf"))
        new_most = tl.maximum(most, tl.max(scores, 1))
        base = new_most
        if is_masked:
            base = tl.where(new_most == float("-inf"), 0.0, new_most)
        share = tl.exp2(scores - base[:, None])
        decay = tl.exp2(most - base)
        values = load_tile(v, key, n_keys, v_row, value_channels, value_width, 0, is_masked)
        out = tl.dot(share.to(values.dtype), values, out * decay[:, None])
        total = total * decay + tl.sum(share, 1)
        most = new_most
    return out, most, total


@triton.jit
def attention_kernel(
    q, k, v, table, out, lse, n_queries, n_keys, n_segments, q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch,
    v_row, v_head, scale, cap, channels: tl.constexpr, value_channels: tl.constexpr, group: tl.constexpr,
    causal: tl.constexpr, window: tl.constexpr, has_cap: tl.constexpr, has_table: tl.constexpr, steps: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, width: tl.constexpr, rest_width: tl.constexpr,
    value_width: tl.constexpr,
):  # fmt: skip
    # The last queries see most: they start first.
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    head, sequence = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    query = number * rows + tl.arange(0, rows)
    table += sequence * 2 * (n_segments + 1)
    known = tl.minimum(query, n_queries - 1)
    first, end = find_keys(table, known, n_queries, n_keys, n_segments, causal, window, has_table, steps)
    q += sequence * q_batch + head * q_head
    k += sequence * k_batch + (head // group) * k_head
    v += sequence * v_batch + (head // group) * v_head
    main = load_tile(q, query, n_queries, q_row, channels, width, 0, True)
    rest = main
    if rest_width:
        rest = load_tile(q, query, n_queries, q_row, channels, rest_width, width, True)
    sums = tl.zeros([rows, value_width], tl.float32)
    most = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    start, full, late, stop = find_loop(first, end, block)
    for phase in tl.static_range(3):
        begin = start if phase == 0 else (full if phase == 1 else late)
        until = full if phase == 0 else (late if phase == 1 else stop)
        sums, most, total = attend_blocks(
            sums, most, total, main, rest, k, v, first, end, begin, until, n_keys, k_row, v_row, channels,
            value_channels, scale, cap, has_cap, phase != 1, block, width, rest_width, value_width,
        )  # fmt: skip
    is_query = query < n_queries
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    column = tl.arange(0, value_width)
    n_heads = tl.num_programs(1)
    to = (sequence * n_queries + query.to(tl.int64)) * n_heads + head
    at = out + to[:, None] * value_channels + column[None, :]
    tl.store(at, sums.to(out.dtype.element_ty), is_query[:, None] & (column[None, :] < value_channels))
    sums_at = lse + (sequence * n_heads + head) * n_queries + query
    tl.store(sums_at, (most + tl.log2(total)) * 0.6931471805599453, is_query)  # ln(2): to natural logarithms


class Widths(NamedTuple):
    """Channels as powers of two: of q and k in two parts, of v in one."""

    width: int
    rest_width: int
    value_width: int


def split_channels(channels: int, value_channels: int) -> Widths:
    """192 channels are 128 and 64: tiles are powers of two, and padding to 256 would cost a third of the matmuls."""
    width = max(LEAST, 1 << (channels.bit_length() - 1))
    rest = channels - width
    return Widths(
        width,
        max(LEAST, 1 << (rest - 1).bit_length()) if rest > 0 else 0,
        max(LEAST, 1 << (value_channels - 1).bit_length()),
    )


def dense_channels(x: Tensor) -> Tensor:
    """The tensor with its channels next to each other."""
    return x if x.stride(-1) == 1 else x.contiguous()


def find_sizes(q: Tensor, k: Tensor, v: Tensor, segments: Tensor | None) -> tuple[int, ...]:
    """What settings are chosen for; `q` and `k` are [batch, sequence, heads, channels]."""
    return *q.shape, *k.shape[1:3], v.shape[-1], 0 if segments is None else segments.shape[-1]


def describe_rule(
    q: Tensor, k: Tensor, segments: Tensor | None, *, causal: bool, window: int, cap: float
) -> dict[str, Any]:
    """Compile-time settings that forward and backward share."""
    n_segments = 1 if segments is None else segments.shape[-1] - 1
    return {
        "group": q.shape[2] // k.shape[2],
        "causal": causal,
        "window": window,
        "has_cap": cap > 0,
        "has_table": segments is not None,
        "steps": n_segments.bit_length(),
    }


def scale_scores(scale: float, cap: float) -> tuple[float, float]:
    """The factor on products of queries and keys, and the cap, for scores whose exponentials have base 2."""
    return (scale / cap, cap * LOG2_E) if cap else (scale * LOG2_E, 0.0)


def run_segments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor | None,
    *,
    scale: float,
    causal: bool,
    window: int,
    cap: float = 0.0,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """Output [batch, queries, heads, value channels] and lse [batch, heads, queries]."""
    q, k, v = dense_channels(q), dense_channels(k), dense_channels(v)
    batch, n_queries, heads, channels = q.shape
    out = q.new_empty((batch, n_queries, heads, v.shape[-1]))
    lse = q.new_empty((batch, heads, n_queries), dtype=torch.float32)
    if not out.numel():
        return out, lse
    if tiles is None:
        stages = _STAGES.choose(*find_sizes(q, k, v, segments), int(causal), window)
        tiles = choose_tiles(q.device, channels, v.shape[-1]).forward._replace(**stages)
    table = lse if segments is None else segments.contiguous()
    launch(
        attention_kernel,
        (triton.cdiv(n_queries, tiles.rows), heads, batch),
        *(q, k, v, table, out, lse, n_queries, k.shape[1], 1 if segments is None else segments.shape[-1] - 1),
        *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *scale_scores(scale, cap)),
        channels=channels,
        value_channels=v.shape[-1],
        **describe_rule(q, k, segments, causal=causal, window=window, cap=cap),
        **split_channels(channels, v.shape[-1])._asdict(),
        **tiles._asdict(),
    )
    return out, lse
