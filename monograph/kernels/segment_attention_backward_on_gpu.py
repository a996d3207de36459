"""The gradients of attention over segments, in Triton.

Two kernels, each of which computes the scores it needs from q, k and lse: one program writes the gradient of a block of
queries, another one those of a block of keys and values, summed over all query heads that share them. No atomics: the
gradients are deterministic, and need no workspace but one number for each query and head.
"""

import torch
from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.attention_tiles import Tiles, choose_tiles
from monograph.kernels.launch import launch
from monograph.kernels.segment_attention_on_gpu import (
    dense_channels,
    describe_rule,
    find_sizes,
    load_tile,
    scale_scores,
    split_channels,
    tanh,
)
from monograph.kernels.tuning import Tunable
from monograph.kernels.visible_keys_on_gpu import find_keys, find_loop, find_queries

_QUERY_STAGES, _KEY_STAGES = (
    Tunable(name, {}, *({"num_stages": stages} for stages in (2, 3, 4)))
    for name in ("attention_backward_queries", "attention_backward_keys")
)


@triton.jit
def row_dot_kernel(
    grad,
    out,
    dots,
    n_rows,
    n_queries,
    heads,
    grad_batch,
    grad_row,
    grad_head,
    channels,
    rows: tl.constexpr,
    width: tl.constexpr,
):
    """sum(grad * out) of every query and head: [batch, heads, queries]."""
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    column = tl.arange(0, width)
    head = row % heads
    query = row // heads % n_queries
    sequence = row // heads // n_queries
    is_in = (row[:, None] < n_rows) & (column[None, :] < channels)
    at = sequence * grad_batch + query * grad_row + head * grad_head
    g = tl.load(grad + at[:, None] + column[None, :], is_in, 0.0).to(tl.float32)
    o = tl.load(out + row[:, None] * channels + column[None, :], is_in, 0.0).to(tl.float32)
    tl.store(dots + (sequence * heads + head) * n_queries + query, tl.sum(g * o, 1), row < n_rows)


@triton.jit
def sum_queries(
    of_q, of_rest, q, q_rest, grad, lse, dots, k, v, first, end, start, stop, n_keys, k_row, v_row,
    channels: tl.constexpr, value_channels: tl.constexpr, scale, cap, has_cap: tl.constexpr, is_masked: tl.constexpr,
    block: tl.constexpr, width: tl.constexpr, rest_width: tl.constexpr, value_width: tl.constexpr,
):  # fmt: skip
    """Add what the keys from `start` to `stop` give to the gradient of a block of queries."""
    for here in range(start, stop, block):
        key = here + tl.arange(0, block)
        keys = load_tile(k, key, n_keys, k_row, channels, width, 0, is_masked)
        scores = tl.dot(q, tl.trans(keys))
        more = keys
        if rest_width:
            more = load_tile(k, key, n_keys, k_row, channels, rest_width, width, is_masked)
            scores = tl.dot(q_rest, tl.trans(more), scores)
        scores = scores * scale
        slope = scores
        if has_cap:
            scores = tanh(scores)
            slope = 1.0 - scores * scores
            scores = cap * scores
        share = tl.exp2(scores - lse[:, None])
        if is_masked:
            is_seen = (key[None, :] >= first[:, None]) & (key[None, :] < end[:, None])
            share = tl.where(is_seen, share, 0.0)
        values = load_tile(v, key, n_keys, v_row, value_channels, value_width, 0, is_masked)
        of_share = tl.dot(grad, tl.trans(values))
        change = share * (of_share - dots[:, None])
        if has_cap:
            change = change * slope
        of_scores = change.to(keys.dtype)
        of_q = tl.dot(of_scores, keys, of_q)
        if rest_width:
            of_rest = tl.dot(of_scores, more, of_rest)
    return of_q, of_rest


@triton.jit
def query_gradient_kernel(
    q, k, v, table, grad, lse, dots, of_q, n_queries, n_keys, n_segments, q_batch, q_row, q_head, k_batch, k_row,
    k_head, v_batch, v_row, v_head, grad_batch, grad_row, grad_head, scale, log2_scale, cap, channels: tl.constexpr,
    value_channels: tl.constexpr, group: tl.constexpr, causal: tl.constexpr, window: tl.constexpr,
    has_cap: tl.constexpr, has_table: tl.constexpr, steps: tl.constexpr, rows: tl.constexpr, block: tl.constexpr,
    width: tl.constexpr, rest_width: tl.constexpr, value_width: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries of one head."""
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    head, sequence = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    n_heads = tl.num_programs(1)
    query = number * rows + tl.arange(0, rows)
    is_query = query < n_queries
    table += sequence * 2 * (n_segments + 1)
    known = tl.minimum(query, n_queries - 1)
    first, end = find_keys(table, known, n_queries, n_keys, n_segments, causal, window, has_table, steps)
    q += sequence * q_batch + head * q_head
    k += sequence * k_batch + (head // group) * k_head
    v += sequence * v_batch + (head // group) * v_head
    grad += sequence * grad_batch + head * grad_head
    main = load_tile(q, query, n_queries, q_row, channels, width, 0, True)
    more = main
    if rest_width:
        more = load_tile(q, query, n_queries, q_row, channels, rest_width, width, True)
    given = load_tile(grad, query, n_queries, grad_row, value_channels, value_width, 0, True)
    at = (sequence * n_heads + head) * n_queries + query
    # Padded rows: any finite number, and a softmax of zeros.
    sums = tl.load(lse + at, is_query, 0.0) * 1.4426950408889634
    dot = tl.load(dots + at, is_query, 0.0)
    found = tl.zeros([rows, width], tl.float32)
    rest = tl.zeros([rows, rest_width if rest_width else width], tl.float32)
    start, full, late, stop = find_loop(first, end, block)
    for phase in tl.static_range(3):
        begin = start if phase == 0 else (full if phase == 1 else late)
        until = full if phase == 0 else (late if phase == 1 else stop)
        found, rest = sum_queries(
            found, rest, main, more, given, sums, dot, k, v, first, end, begin, until, n_keys, k_row, v_row, channels,
            value_channels, log2_scale, cap, has_cap, phase != 1, block, width, rest_width, value_width,
        )  # fmt: skip
    to = of_q + ((sequence * n_queries + query.to(tl.int64)) * n_heads + head)[:, None] * channels
    column = tl.arange(0, width)[None, :]
    tl.store(to + column, (found * scale).to(of_q.dtype.element_ty), is_query[:, None] & (column < channels))
    if rest_width:
        column = width + tl.arange(0, rest_width)[None, :]
        tl.store(to + column, (rest * scale).to(of_q.dtype.element_ty), is_query[:, None] & (column < channels))


@triton.jit
def sum_keys(
    of_k, of_rest, of_v, k, k_rest, v, q, grad, lse, dots, first, end, start, stop, n_queries, q_row, grad_row,
    channels: tl.constexpr, value_channels: tl.constexpr, scale, cap, has_cap: tl.constexpr, is_masked: tl.constexpr,
    block: tl.constexpr, width: tl.constexpr, rest_width: tl.constexpr, value_width: tl.constexpr,
):  # fmt: skip
    """Add what the queries from `start` to `stop` give to the gradients of a block of keys and values."""
    for here in range(start, stop, block):
        query = here + tl.arange(0, block)
        queries = load_tile(q, query, n_queries, q_row, channels, width, 0, is_masked)
        scores = tl.dot(k, tl.trans(queries))
        more = queries
        if rest_width:
            more = load_tile(q, query, n_queries, q_row, channels, rest_width, width, is_masked)
            scores = tl.dot(k_rest, tl.trans(more), scores)
        is_query = query < n_queries
        sums = tl.load(lse + query, is_query, 0.0) * 1.4426950408889634
        dot = tl.load(dots + query, is_query, 0.0)
        scores = scores * scale
        slope = scores
        if has_cap:
            scores = tanh(scores)
            slope = 1.0 - scores * scores
            scores = cap * scores
        share = tl.exp2(scores - sums[None, :])
        if is_masked:
            is_seen = (query[None, :] >= first[:, None]) & (query[None, :] < end[:, None])
            share = tl.where(is_seen, share, 0.0)
        given = load_tile(grad, query, n_queries, grad_row, value_channels, value_width, 0, is_masked)
        of_v = tl.dot(share.to(given.dtype), given, of_v)
        of_share = tl.dot(v, tl.trans(given))
        change = share * (of_share - dot[None, :])
        if has_cap:
            change = change * slope
        of_scores = change.to(queries.dtype)
        of_k = tl.dot(of_scores, queries, of_k)
        if rest_width:
            of_rest = tl.dot(of_scores, more, of_rest)
    return of_k, of_rest, of_v


@triton.jit
def key_gradient_kernel(
    q, k, v, table, grad, lse, dots, of_k, of_v, n_queries, n_keys, n_segments, q_batch, q_row, q_head, k_batch,
    k_row, k_head, v_batch, v_row, v_head, grad_batch, grad_row, grad_head, scale, log2_scale, cap,
    channels: tl.constexpr, value_channels: tl.constexpr, group: tl.constexpr, causal: tl.constexpr,
    window: tl.constexpr, has_cap: tl.constexpr, has_table: tl.constexpr, steps: tl.constexpr, rows: tl.constexpr,
    block: tl.constexpr, width: tl.constexpr, rest_width: tl.constexpr, value_width: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of keys and values, over the query heads that share them."""
    number, shared, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    n_shared = tl.num_programs(1)
    key = number * rows + tl.arange(0, rows)
    is_key = key < n_keys
    table += sequence * 2 * (n_segments + 1)
    known = tl.minimum(key, n_keys - 1)
    first, end = find_queries(table, known, n_queries, n_keys, n_segments, causal, window, has_table, steps)
    k += sequence * k_batch + shared * k_head
    v += sequence * v_batch + shared * v_head
    main = load_tile(k, key, n_keys, k_row, channels, width, 0, True)
    more = main
    if rest_width:
        more = load_tile(k, key, n_keys, k_row, channels, rest_width, width, True)
    values = load_tile(v, key, n_keys, v_row, value_channels, value_width, 0, True)
    found = tl.zeros([rows, width], tl.float32)
    rest = tl.zeros([rows, rest_width if rest_width else width], tl.float32)
    found_v = tl.zeros([rows, value_width], tl.float32)
    start, full, late, stop = find_loop(first, end, block)
    for index in range(group):
        head = shared * group + index
        of_head = q + sequence * q_batch + head * q_head
        given = grad + sequence * grad_batch + head * grad_head
        at = (sequence * n_shared * group + head) * n_queries
        for phase in tl.static_range(3):
            begin = start if phase == 0 else (full if phase == 1 else late)
            until = full if phase == 0 else (late if phase == 1 else stop)
            found, rest, found_v = sum_keys(
                found, rest, found_v, main, more, values, of_head, given, lse + at, dots + at, first, end, begin,
                until, n_queries, q_row, grad_row, channels, value_channels, log2_scale, cap, has_cap, phase != 1,
                block, width, rest_width, value_width,
            )  # fmt: skip
    at = ((sequence * n_keys + key.to(tl.int64)) * n_shared + shared)[:, None]
    column = tl.arange(0, width)[None, :]
    tl.store(
        of_k + at * channels + column, (found * scale).to(of_k.dtype.element_ty), is_key[:, None] & (column < channels)
    )
    if rest_width:
        column = width + tl.arange(0, rest_width)[None, :]
        is_in = is_key[:, None] & (column < channels)
        tl.store(of_k + at * channels + column, (rest * scale).to(of_k.dtype.element_ty), is_in)
    column = tl.arange(0, value_width)[None, :]
    is_in = is_key[:, None] & (column < value_channels)
    tl.store(of_v + at * value_channels + column, found_v.to(of_v.dtype.element_ty), is_in)


def choose_backward_tiles(gpu: torch.device, channels: int, value_channels: int, *sizes: int) -> tuple[Tiles, Tiles]:
    """For the gradient of queries, and of keys and values."""
    _, queries, keys = choose_tiles(gpu, channels, value_channels)
    return queries._replace(**_QUERY_STAGES.choose(*sizes)), keys._replace(**_KEY_STAGES.choose(*sizes))


def run_segments_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor | None,
    out: Tensor,
    lse: Tensor,
    *,
    scale: float,
    causal: bool,
    window: int,
    cap: float = 0.0,
    tiles: tuple[Tiles, Tiles] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    grad, q, k, v, out = dense_channels(grad), dense_channels(q), dense_channels(k), dense_channels(v), out.contiguous()
    of_q, of_k, of_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    if not q.numel():
        return of_q, of_k.zero_(), of_v.zero_()
    if not k.numel():
        return of_q.zero_(), of_k, of_v
    shape = batch, n_queries, heads, channels, *_ = find_sizes(q, k, v, segments)
    widths = split_channels(channels, v.shape[-1])
    dots, lse = lse.new_empty(lse.shape), lse.contiguous()
    n_rows, rows = batch * n_queries * heads, 32
    launch(
        row_dot_kernel,
        (triton.cdiv(n_rows, rows),),
        *(grad, out, dots, n_rows, n_queries, heads, *grad.stride()[:3], v.shape[-1]),
        rows=rows,
        width=widths.value_width,
    )
    n_segments = 1 if segments is None else segments.shape[-1] - 1
    table = lse if segments is None else segments.contiguous()
    sizes = (n_queries, k.shape[1], n_segments, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad.stride()[:3])
    settings = {
        "channels": channels,
        "value_channels": v.shape[-1],
        **describe_rule(q, k, segments, causal=causal, window=window, cap=cap),
        **widths._asdict(),
    }
    of_queries, of_keys = tiles or choose_backward_tiles(q.device, channels, v.shape[-1], *shape, int(causal), window)
    inputs, scales = (q, k, v, table, grad, lse, dots), (scale, *scale_scores(scale, cap))
    grid = (triton.cdiv(n_queries, of_queries.rows), heads, batch)
    launch(query_gradient_kernel, grid, *inputs, of_q, *sizes, *scales, **settings, **of_queries._asdict())
    grid = (triton.cdiv(k.shape[1], of_keys.rows), k.shape[2], batch)
    launch(key_gradient_kernel, grid, *inputs, of_k, of_v, *sizes, *scales, **settings, **of_keys._asdict())
    return of_q, of_k, of_v
