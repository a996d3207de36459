"""Batches: samples stacked into tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from monograph.errors import DataError
from monograph.train.data.cursor import Cursor
from monograph.train.data.sample import Sample


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of one part, in host memory."""

    tensors: dict[str, torch.Tensor]
    """Name -> tensor [local_batch_size, ...]; for text tokens, labels, positions and documents. `samples` numbers the
    sequences of the whole run, which is where random numbers are counted from."""
    cursor: Cursor
    """The first sample of the global batch that this is a part of."""


SAMPLES = "samples"


def stack_samples(samples: Sequence[Sample], cursor: Cursor, *, first_number: int = 0) -> Batch:
    """Samples of equal names, shapes and dtypes as one batch; they are numbered from `first_number` on."""
    first = describe_sample(samples[0])
    for sample in samples[1:]:
        if (found := describe_sample(sample)) != first:
            raise DataError(
                "the samples of a batch differ in names, shapes or dtypes",
                why=f"one has {first}, another {found}",
                do="let the source pad, cut or cast them to one form",
            )
    stacked = {name: torch.from_numpy(np.stack([sample[name] for sample in samples])) for name in samples[0]}
    stacked[SAMPLES] = torch.arange(first_number, first_number + len(samples))
    return Batch(stacked, cursor)


def describe_sample(sample: Sample) -> str:
    """Names, dtypes and shapes of a sample, in the order of the names."""
    return ", ".join(f"{name} {sample[name].dtype}{list(sample[name].shape)}" for name in sorted(sample))
