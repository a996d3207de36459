"""Samples from a stream: the same cutting as for a corpus at hand, but only from front to back.

A stream does not say how long it is, so its samples are counted through all passes: the cursor stays in epoch 0. It is
read and shuffled in blocks of documents. Where a block begins in the stream, and in the tokens before it, is remembered
and saved: a run that continues begins with the block that its first sample is in. Every part that reads a stream reads
all of it and keeps its own samples; a stream of many files is therefore read as several lanes (lanes.py).
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from monograph.errors import DataError
from monograph.log import get_log
from monograph.train.data.cursor import Cursor
from monograph.train.data.document import Document, find_key
from monograph.train.data.encode import PROGRESS_SECONDS, tokenize
from monograph.train.data.permutation import Permutation, find_seed
from monograph.train.data.sample import Sample, build_sample
from monograph.train.data.split import HeldOutTexts, Split
from monograph.train.data.tokenizer import Tokenizer

KEPT_BOOKMARKS = 1 << 12
"""Blocks whose beginnings are remembered; the trainer is behind the reader by a few."""

log = get_log(__name__)


class DocumentStream(Protocol):
    """Documents from front to back, as often as they are asked for."""

    @property
    def description(self) -> str: ...
    def read(self, pause: Callable[[float], object] = ...) -> Iterator[Document]: ...
    def read_from(self, place: tuple[int, ...], pause: Callable[[float], object] = ...) -> Iterator[Document]: ...


class Bookmark(NamedTuple):
    """Where a block of documents begins."""

    tokens: int = 0
    """Tokens before it, of all passes."""
    passes: int = 0
    """Passes over the stream before this one."""
    block: int = 0
    """Its number in the pass."""
    place: tuple[int, ...] = ()
    """Of its first document, in the stream."""


class StreamSamples:
    """The samples of one split of a stream, in order."""

    samples_per_epoch = None

    def __init__(
        self,
        stream: DocumentStream,
        tokenizer: Tokenizer,
        *,
        split: Split,
        held_out: HeldOutTexts,
        seq_len: int,
        seed: int,
        block_documents: int,
        shuffles: bool,
        is_endless: bool = True,
    ) -> None:
        """A stream that is not `is_endless` is read once."""
        self.stream, self.tokenizer = stream, tokenizer
        self.split, self.held_out = split, held_out
        self.seq_len, self.seed, self.is_endless = seq_len, seed, is_endless
        self.block_documents, self.shuffles = max(block_documents, 1), shuffles
        self._bookmarks: dict[int, Bookmark] = {}
        self._lock = threading.Lock()

    def check_start(self) -> None:
        """Read the first row, so that a wrong name, a missing field or an empty stream is found before training."""
        if next(self.stream.read(), None) is None:
            raise self._empty("it has no rows")

    def sample(self, epoch: int, index: int) -> Sample:
        """Random access, for the same interface; takes as long as reading up to there."""
        return next(self.read(Cursor(epoch, index), iter([range(1)]), threading.Event()))

    def find_bookmark(self, sample: int) -> list[Any]:
        """Where to begin to read for a sample: the last block known to begin before it; plain numbers."""
        found = self._find_block(sample)
        return [found.tokens, found.passes, found.block, list(found.place)]

    def use_bookmark(self, saved: Sequence[Any]) -> None:
        """Know what `find_bookmark` of an earlier process found in the same stream."""
        tokens, passes, block, place = saved
        self._remember(Bookmark(tokens, passes, block, tuple(place)))

    def _find_block(self, sample: int) -> Bookmark:
        with self._lock:
            before = [tokens for tokens in self._bookmarks if tokens <= sample * self.seq_len]
            return self._bookmarks[max(before)] if before else Bookmark()

    def _remember(self, bookmark: Bookmark) -> None:
        with self._lock:
            self._bookmarks[bookmark.tokens] = bookmark
            for tokens in sorted(self._bookmarks)[:-KEPT_BOOKMARKS]:
                del self._bookmarks[tokens]

    def read(self, cursor: Cursor, runs: Iterator[range], closing: threading.Event) -> Iterator[Sample]:
        """The samples of each run, counted from the cursor; what lies before them in their block is dropped."""
        earliest = next(runs, range(0))
        start = self._find_block(cursor.sample + earliest.start)
        cuts = self._cut(self._read_tokens(start, closing), start.tokens)
        said = time.monotonic()
        for run in itertools.chain([earliest], runs):
            for number in run:
                wanted = cursor.sample + number
                for index, stream, ends in cuts:
                    if index == wanted:
                        yield build_sample(stream, ends, self.seq_len)
                        break
                    if time.monotonic() - said > PROGRESS_SECONDS:
                        said = time.monotonic()
                        log.info("data: reading %s again: sample %d of %d", self.stream.description, index, wanted)
                else:
                    return  # the reader was closed, or the stream has been read once

    def _read_tokens(self, start: Bookmark, closing: threading.Event) -> Iterator[np.ndarray]:
        """The documents of this split from a block on, pass after pass, or once."""
        tokens, block, place = start.tokens, start.block, start.place
        for passes in itertools.count(start.passes) if self.is_endless else (0,):
            found = False
            for group in split_blocks(self._select(self.stream.read_from(place, closing.wait)), self.block_documents):
                self._remember(Bookmark(tokens, passes, block, group[0].place))
                for each, _ in tokenize(self._shuffle(group, passes, block), self.tokenizer):
                    found = True
                    if closing.is_set():
                        return
                    tokens += len(each)
                    yield each
                block += 1
            if closing.is_set():
                return
            if not found:
                raise self._empty(f"none of its rows has text that belongs to the {self.split} split")
            block, place = 0, ()

    def _shuffle(self, group: list[Document], passes: int, block: int) -> list[Document]:
        if not self.shuffles:
            return group
        order = Permutation(len(group), find_seed("stream", self.seed, passes, block)).apply(np.arange(len(group)))
        return [group[number] for number in order]

    def _select(self, documents: Iterable[Document]) -> Iterator[Document]:
        return (one for one in documents if self.held_out.has(find_key(one), self.split))

    def _cut(self, documents: Iterable[np.ndarray], before: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Cuts of seq_len + 1 tokens, `seq_len` apart, each with its number and the places inside where documents end.

        The first document has `before` tokens before it; the cut that they begin is left out.
        """
        index = -(-before // self.seq_len)
        start = index * self.seq_len - before
        parts: list[np.ndarray] = []
        ends: list[int] = []
        length = 0
        for tokens in documents:
            parts.append(tokens)
            length += len(tokens)
            ends.append(length)
            if length - start <= self.seq_len:
                continue
            joined, boundaries = np.concatenate(parts), np.array(ends)
            while length - start > self.seq_len:
                first, last = np.searchsorted(boundaries, (start + 1, start + self.seq_len + 1))
                yield index, joined[start : start + self.seq_len + 1], boundaries[first:last] - start
                index, start = index + 1, start + self.seq_len
            parts, length = [joined[start:]], length - start
            ends = [int(end) - start for end in boundaries[boundaries > start]]
            start = 0

    def _empty(self, why: str) -> DataError:
        return DataError(
            f"the dataset is empty: {self.stream.description}", why=why, do="choose another dataset or split"
        )


def split_blocks(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """The documents in groups of `size`, the last of what is left."""
    iterator = iter(documents)
    while group := list(itertools.islice(iterator, size)):
        yield group
