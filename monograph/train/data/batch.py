"""Sequences as the model sees them, cut from the token stream, and batches: samples stacked into tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from monograph.labels import IGNORED_LABEL
from monograph.train.data.cursor import Cursor


@dataclass(frozen=True, slots=True)
class Sample:
    """Four int64 arrays of one sequence length."""

    tokens: np.ndarray
    """What is read."""
    labels: np.ndarray
    """What comes next, or IGNORED at the last token of a document."""
    positions: np.ndarray
    """Counted from the start of the document, or of the sample for a document that began in an earlier one."""
    documents: np.ndarray
    """Numbers the documents inside the sample from 0, so that attention can keep them apart."""


def build_sample(stream: np.ndarray, ends: np.ndarray, seq_len: int) -> Sample:
    """Make a sample from `seq_len` tokens and the one after them, which is only a label.

    `ends` are the places inside the cut just after a document's last token, ascending, in 1..seq_len. Borders come
    from here and never from looking for an eos id, which a text may contain. The token after the cut may be missing
    when a document ends exactly there, since its label is ignored anyway.
    """
    tokens = stream[:seq_len].astype(np.int64)
    labels = np.full(seq_len, IGNORED_LABEL, dtype=np.int64)
    following = stream[1 : seq_len + 1]
    labels[: len(following)] = following
    labels[ends - 1] = IGNORED_LABEL
    starts = np.concatenate(([0], ends))  # an end at the very end begins a document of no tokens
    counts = np.diff(starts, append=seq_len)
    documents = np.repeat(np.arange(len(starts), dtype=np.int64), counts)
    positions = np.arange(seq_len, dtype=np.int64) - np.repeat(starts, counts)
    return Sample(tokens, labels, positions, documents)


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of one part: int64 tensors [local_batch_size, seq_len] in host memory."""

    tokens: torch.Tensor
    """What is read."""
    labels: torch.Tensor
    """What comes next; -100 where nothing is to be predicted."""
    positions: torch.Tensor
    """Places inside the document."""
    documents: torch.Tensor
    """Numbers of the documents inside each sequence."""
    cursor: Cursor
    """The first sample of the global batch that this is a part of."""


def stack_samples(samples: Sequence[Sample], cursor: Cursor) -> Batch:
    """Samples of equal length as one batch."""
    names = ("tokens", "labels", "positions", "documents")
    stacked = {name: torch.from_numpy(np.stack([getattr(sample, name) for sample in samples])) for name in names}
    return Batch(**stacked, cursor=cursor)
