"""Tables of segments from the documents of a batch, built on the host: what each rank's queries see.

One table for each kind of attention and micro-batch, shared by all layers of the kind: int32 [batch, slices of the
rank, 2, segments + 1] (kernels/attention_segments.py). All have the same shape, whatever the documents are.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from monograph.errors import DataError
from monograph.models.attention_kind import AttentionKind
from monograph.models.sequence_part import SequencePart
from monograph.plurals import counted

LEAST_DOCUMENTS, TOKENS_PER_DOCUMENT = 16, 32
"""For kernels that pay for room: one document for every 32 tokens of a sequence, and 16 in any case."""


def find_limit(max_documents: int, length: int, *, pays_for_room: bool) -> int:
    """The documents that a sequence of this length may have: where room is free, one a token."""
    free = max(LEAST_DOCUMENTS, length // TOKENS_PER_DOCUMENT) if pays_for_room else length
    return min(length, max_documents or free)


def build_segments(
    documents: Tensor | None,
    kind: AttentionKind,
    part: SequencePart,
    *,
    batch: int,
    length: int,
    max_documents: int = 0,
    pays_for_room: bool = False,
) -> Tensor | None:
    """The table of a kind for a rank with this part of every sequence; None where no kernel needs one.

    documents: int64 [batch, length], the number of each token's document; None where a sequence is one.
    max_documents: what a sequence may have; 0 allows any number, fewer where the kernel `pays_for_room`.
    """
    part = part.attended
    if documents is None and kind.is_plain and part.is_whole:
        return None
    limit = find_limit(max_documents, length, pays_for_room=pays_for_room) if documents is not None else 1
    room = limit + (-(-length // kind.chunk) if kind.chunk else 0) + (0 if part.is_whole else 2)
    bounds = part.bounds(length)
    table = np.empty((batch, len(bounds), 2, room + 1), dtype=np.int32)
    for sequence in range(batch):
        starts = find_starts(None if documents is None else documents[sequence].numpy(), length, limit)
        pieces = cut_chunks(starts, length, kind.chunk)
        for number, (start, stop) in enumerate(bounds):
            keys = count_keys(number, length, kind, part)
            rows = np.array(list(find_rows(pieces, start, stop, keys, kind, part)), dtype=np.int32)
            table[sequence, number, :, : len(rows)] = rows.T
            table[sequence, number, :, len(rows) :] = [[stop - start], [keys]]
    return torch.from_numpy(table)


def count_keys(number: int, length: int, kind: AttentionKind, part: SequencePart) -> int:
    """Keys that the queries of slice `number` are given: with causal attention those of the first slices of all ranks,
    which are the first half of a sequence, see no other half."""
    return length // 2 if number == 0 and kind.causal and not part.is_whole else length


def find_starts(documents: np.ndarray | None, length: int, limit: int) -> np.ndarray:
    """Where the documents of a sequence begin."""
    if documents is None:
        return np.zeros(1, dtype=np.int64)
    starts = np.concatenate(([0], np.flatnonzero(documents[1:] != documents[:-1]) + 1))
    if len(starts) > limit:
        raise DataError(
            f"a sequence of {length} tokens has {counted(len(starts), 'document')}, more than the {limit} the step was "
            "built for",
            why="the tables of packed documents have a fixed size, which the workspace of the flash kernel grows with",
            do="--model.max_documents 0 with --model.attention.kernel auto, which have room for any number; "
            f"or --model.max_documents {2 * len(starts)}",
        )
    return starts


def cut_chunks(starts: np.ndarray, length: int, chunk: int) -> list[tuple[int, int]]:
    """The documents as (start, stop), cut every `chunk` tokens."""
    stops = [*starts[1:].tolist(), length]
    whole = zip(starts.tolist(), stops, strict=True)
    if not chunk:
        return list(whole)
    return [(cut, min(cut + chunk, stop)) for start, stop in whole for cut in range(start, stop, chunk)]


def find_rows(
    pieces: list[tuple[int, int]], start: int, stop: int, keys: int, kind: AttentionKind, part: SequencePart
) -> Iterator[tuple[int, int]]:
    """(first query, first key) of every segment of the queries in [start, stop), and of keys that none of them sees."""
    here = [(begin, end) for begin, end in pieces if begin < stop and end > start]
    if not part.is_whole:
        yield 0, 0
    for begin, _ in here:
        yield max(begin, start) - start, begin
    if not part.is_whole:
        end = here[-1][1]
        yield stop - start, min(end, stop) if kind.causal else end
    yield stop - start, keys
