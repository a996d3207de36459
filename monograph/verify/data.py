"""The micro-batches of one rank, or of all of them, update by update."""

from collections.abc import Iterator
from contextlib import contextmanager

from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.data.cursor import Cursor
from monograph.train.state import find_global_batch


@contextmanager
def open_updates(config: TrainerConfig, part: int, parts: int) -> Iterator[Iterator[list[Batch]]]:
    """What one of `parts` data-parallel ranks reads in every update."""
    with _open(config, part, parts, find_global_batch(config.training, parts)) as updates:
        yield updates


@contextmanager
def open_whole_updates(config: TrainerConfig, parts: int) -> Iterator[Iterator[list[Batch]]]:
    """What `parts` data-parallel ranks read together in every update: those of the first come first."""
    with _open(config, 0, 1, find_global_batch(config.training, parts)) as updates:
        yield updates


@contextmanager
def _open(config: TrainerConfig, part: int, parts: int, samples: int) -> Iterator[Iterator[list[Batch]]]:
    data = config.dataloader.build(
        tokenizer=config.tokenizer.build(),
        seq_len=config.training.seq_len,
        vocab_size=config.model.find_vocab_size(),
        seed=config.debug.seed,
        split="train",
        samples_per_update=samples,
    )
    local = config.training.local_batch_size
    count = samples // (local * parts)
    with data.batches(Cursor(), local_batch_size=local, global_batch_size=samples, part=part, parts=parts) as batches:
        yield ([next(batches) for _ in range(count)] for _ in iter(int, 1))
