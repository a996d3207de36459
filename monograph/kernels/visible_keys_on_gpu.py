"""Which keys a query sees and which queries see a key, from a table of segments, inside of Triton kernels.

Segments follow each other, so both ranges move forward with the position: a block of queries needs the keys from its
first query's first to its last query's last, and between its last query's first key and its first query's last key no
score is masked. Every position finds its segment by binary search in the table, so that padding costs nothing.
"""

from monograph.compat.triton import tl, triton


@triton.jit
def find_segment(starts, position, n_segments, steps: tl.constexpr):
    """The last segment that starts at or before each position."""
    low = tl.zeros_like(position)
    high = tl.zeros_like(position) + (n_segments - 1)
    for _ in tl.static_range(steps):
        middle = (low + high + 1) // 2
        is_before = tl.load(starts + middle) <= position
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, tl.maximum(middle - 1, low))
    return low


@triton.jit
def find_keys(
    table,
    query,
    n_queries,
    n_keys,
    n_segments,
    causal: tl.constexpr,
    window: tl.constexpr,
    has_table: tl.constexpr,
    steps: tl.constexpr,
):
    """The keys [first, end) that each query sees."""
    if has_table:
        segment = find_segment(table, query, n_segments, steps)
        of_keys = table + n_segments + 1
        first = tl.load(of_keys + segment)
        end = tl.load(of_keys + segment + 1)
        position = query + end - tl.load(table + segment + 1)
    else:
        first = tl.zeros_like(query)
        end = tl.zeros_like(query) + n_keys
        position = query + n_keys - n_queries
    if causal:
        end = tl.minimum(end, position + 1)
    if window:
        first = tl.maximum(first, position - (window - 1))
    return first, end


@triton.jit
def find_queries(
    table,
    key,
    n_queries,
    n_keys,
    n_segments,
    causal: tl.constexpr,
    window: tl.constexpr,
    has_table: tl.constexpr,
    steps: tl.constexpr,
):
    """The queries [first, end) that see each key."""
    if has_table:
        of_keys = table + n_segments + 1
        segment = find_segment(of_keys, key, n_segments, steps)
        first = tl.load(table + segment)
        end = tl.load(table + segment + 1)
        position = key + end - tl.load(of_keys + segment + 1)
    else:
        first = tl.zeros_like(key)
        end = tl.zeros_like(key) + n_queries
        position = key + n_queries - n_keys
    if causal:
        first = tl.maximum(first, position)
    if window:
        end = tl.minimum(end, position + window)
    return first, end


@triton.jit
def find_loop(first, end, block: tl.constexpr):
    """Bounds of a loop over blocks: where it starts, where no score is masked any more, where some are again, its end.

    first, end: of every row of a block, both moving forward; the four bounds are multiples of `block`.
    """
    start = tl.maximum(tl.min(first, 0), 0) // block * block
    stop = (tl.max(end, 0) + block - 1) // block * block
    stop = tl.maximum(stop, start)
    full = (tl.maximum(tl.max(first, 0), 0) + block - 1) // block * block
    full = tl.minimum(tl.maximum(full, start), stop)
    rest = tl.maximum(tl.min(end, 0), 0) // block * block
    rest = tl.minimum(tl.maximum(rest, full), stop)
    return start, full, rest, stop
