"""Segments: which queries attend to which keys, as data.

A table of segments is int32 [batch, 2, segments + 1]: for every sequence, where the segments of its queries begin, and
where those of its keys do, counted within the sequence; the last entry is where the last one ends. The queries of a
segment see the keys of the same segment alone: with `causal` the last query sees all of them, the one before it all but
the last, and so on. A segment may have no queries (keys that no query here sees), or nothing at all (padding). Every
query and key belongs to one: the last entries are the lengths. A query that sees no key has an output of 0, an lse of
minus infinity, and no gradient.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Segment(NamedTuple):
    """Queries of one sequence, and the keys they see."""

    sequence: int
    queries: slice
    keys: slice


def read_segments(segments: Tensor) -> Iterator[Segment]:
    """The segments of a table that have queries, read by the host."""
    starts, stops = segments[..., :-1], segments[..., 1:]
    chosen = (stops[:, 0] > starts[:, 0]).nonzero(as_tuple=True)
    bounds = torch.stack([side[chosen] for side in (*starts.unbind(1), *stops.unbind(1))], 1).tolist()
    for sequence, (q_start, k_start, q_stop, k_stop) in zip(chosen[0].tolist(), bounds, strict=True):
        yield Segment(sequence, slice(q_start, q_stop), slice(k_start, k_stop))


def flatten_segments(segments: Tensor, n_queries: int, n_keys: int) -> tuple[Tensor, Tensor]:
    """The bounds of all segments in the tokens of all sequences, one after the other: int32 [batch x segments + 1]."""
    found = []
    for side, length in ((0, n_queries), (1, n_keys)):
        starts = torch.arange(segments.shape[0], device=segments.device, dtype=torch.int32) * length
        bounds = (segments[:, side, :-1] + starts.unsqueeze(1)).flatten()
        found.append(torch.cat((bounds, bounds.new_full((1,), segments.shape[0] * length))))
    return found[0], found[1]


def build_mask(
    segments: Tensor | None,
    n_queries: int,
    n_keys: int,
    *,
    causal: bool,
    window: int,
    device: torch.device | None = None,
) -> Tensor | None:
    """Which query sees which key: bool [batch or 1, 1, queries, keys]; None where all see all.

    It is made on `device`, by default the table's: a copy from the host could not be recorded in a CUDA graph.
    """
    if segments is None and not causal and not window:
        return None
    device = segments.device if device is None and segments is not None else device
    q, k = torch.arange(n_queries, device=device)[:, None], torch.arange(n_keys, device=device)[None, :]
    if segments is None:
        return mask_positions(q + n_keys - n_queries, k, causal=causal, window=window)[None, None]
    q_starts, k_starts = (each.contiguous() for each in segments.unbind(1))
    q_segment = find_segment(q_starts, n_queries)
    k_segment = find_segment(k_starts, n_keys)
    # The last query of a segment stands at its last key.
    shift = (k_starts.gather(1, q_segment + 1) - q_starts.gather(1, q_segment + 1)).unsqueeze(-1)
    seen = mask_positions(q + shift, k, causal=causal, window=window)
    return (seen & (q_segment.unsqueeze(-1) == k_segment.unsqueeze(1))).unsqueeze(1)


def find_segment(starts: Tensor, length: int) -> Tensor:
    """The number of each position's segment: int64 [batch, length]."""
    positions = torch.arange(length, device=starts.device, dtype=starts.dtype).expand(starts.shape[0], length)
    return torch.searchsorted(starts, positions.contiguous(), right=True) - 1


def mask_positions(q: Tensor, k: Tensor, *, causal: bool, window: int) -> Tensor:
    """Which positions see which: those before them (causal), and no more than `window` of these (0: all)."""
    seen = k <= q if causal else torch.ones_like(k <= q)
    return seen & (k > q - window) if window else seen
