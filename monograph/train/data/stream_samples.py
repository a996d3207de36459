"""Samples from a stream: the same cutting as for a corpus at hand, but only from front to back.

A stream does not say how long it is, so its samples are counted through all passes: the cursor stays in epoch 0, and
resuming reads again from the start and drops what was seen. Every part reads the whole stream and keeps its own
samples. Both are the price of an order that depends on nothing but the stream and the seed; pack a dataset that is read
more than once (`monograph data pack`).
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np

from monograph.errors import DataError
from monograph.log import get_log
from monograph.train.data.cursor import Cursor
from monograph.train.data.document import Document, find_key
from monograph.train.data.encode import PROGRESS_SECONDS, tokenize
from monograph.train.data.permutation import Permutation, find_seed, mix
from monograph.train.data.sample import Sample, build_sample
from monograph.train.data.split import Split, is_held_out
from monograph.train.data.tokenizer import Tokenizer

log = get_log(__name__)


class DocumentStream(Protocol):
    """Documents from front to back, as often as they are asked for."""

    @property
    def description(self) -> str: ...
    def read(self, pause: Callable[[float], object] = ...) -> Iterator[Document]: ...


class StreamSamples:
    """The samples of one split of a stream, in order."""

    samples_per_epoch = None

    def __init__(
        self,
        stream: DocumentStream,
        tokenizer: Tokenizer,
        *,
        split: Split,
        held_out_fraction: float,
        seq_len: int,
        seed: int,
        shuffle_documents: int,
        is_endless: bool = True,
    ) -> None:
        """A stream that is not `is_endless` is read once."""
        self.stream, self.tokenizer = stream, tokenizer
        self.split, self.held_out_fraction = split, held_out_fraction
        self.seq_len, self.seed, self.shuffle_documents = seq_len, seed, shuffle_documents
        self.is_endless = is_endless

    def check_start(self) -> None:
        """Read the first row, so that a wrong name, a missing field or an empty stream is found before training."""
        if next(self.stream.read(), None) is None:
            raise self._empty("it has no rows")

    def sample(self, epoch: int, index: int) -> Sample:
        """Random access, for the same interface; takes as long as reading up to there."""
        return next(self.read(Cursor(epoch, index), iter([range(1)]), threading.Event()))

    def read(self, cursor: Cursor, runs: Iterator[range], closing: threading.Event) -> Iterator[Sample]:
        """The samples of each run, counted from the cursor; everything before them is read and dropped."""
        cuts = enumerate(self._cut(self._read_tokens(closing)))
        said = time.monotonic()
        for run in runs:
            for number in run:
                wanted = cursor.sample + number
                for index, (tokens, ends) in cuts:
                    if index == wanted:
                        yield build_sample(tokens, ends, self.seq_len)
                        break
                    if time.monotonic() - said > PROGRESS_SECONDS:
                        said = time.monotonic()
                        log.info("data: reading %s again: sample %d of %d", self.stream.description, index, wanted)
                else:
                    return  # the reader was closed, or the stream has been read once

    def _read_tokens(self, closing: threading.Event) -> Iterator[np.ndarray]:
        """The documents of this split, pass after pass, or once."""
        for number in itertools.count() if self.is_endless else (0,):
            found = False
            documents = self._select(self.stream.read(closing.wait))
            shuffled = shuffle_window(documents, self.shuffle_documents, find_seed("stream", self.seed, number))
            for tokens, _ in tokenize(shuffled, self.tokenizer):
                found = True
                if closing.is_set():
                    return
                yield tokens
            if closing.is_set():
                return
            if not found:
                raise self._empty(f"none of its rows has text that belongs to the {self.split} split")

    def _select(self, documents: Iterable[Document]) -> Iterator[Document]:
        wanted = self.split == "validation"
        return (one for one in documents if is_held_out(find_key(one), self.held_out_fraction) == wanted)

    def _cut(self, documents: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Cuts of seq_len + 1 tokens, `seq_len` apart, each with the places inside where documents end."""
        parts: list[np.ndarray] = []
        ends: list[int] = []
        length = 0
        for tokens in documents:
            parts.append(tokens)
            length += len(tokens)
            ends.append(length)
            if length <= self.seq_len:
                continue
            joined, boundaries = np.concatenate(parts), np.array(ends)
            start = 0
            while length - start > self.seq_len:
                first, last = np.searchsorted(boundaries, (start + 1, start + self.seq_len + 1))
                yield joined[start : start + self.seq_len + 1], boundaries[first:last] - start
                start += self.seq_len
            parts, length = [joined[start:]], length - start
            ends = [int(end) - start for end in boundaries[boundaries > start]]

    def _empty(self, why: str) -> DataError:
        return DataError(
            f"the dataset is empty: {self.stream.description}", why=why, do="choose another dataset or split"
        )


def shuffle_window(documents: Iterable[Document], size: int, seed: int) -> Iterator[Document]:
    """Hold `size` documents back and let a random one go for each that arrives: a shuffle that needs no whole view."""
    if size < 2:
        yield from documents
        return
    held: list[Document] = []
    for number, document in enumerate(documents):
        if len(held) < size:
            held.append(document)
            continue
        slot = int(mix(np.array([number], np.uint64), seed)[0]) % size
        yield held[slot]
        held[slot] = document
    for index in Permutation(len(held), seed).apply(np.arange(len(held))):
        yield held[index]
