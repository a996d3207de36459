"""What the trainer receives: samples stacked into tensors, with the position they were taken from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from monograph.train.data.cursor import Cursor
from monograph.train.data.sample import Sample


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
