"""From a sample's number to the sample itself, without walking through what lies before it.

An epoch is all documents of a split in a new order, one after the other, cut every `seq_len` tokens. The order has two
levels: spans of documents that lie next to each other come in a new order, and so do the documents inside of each. How
long a span is does not depend on its order and is counted once; so an epoch is a permutation of its spans, and the
documents under a cut are looked up in the spans that it touches: a thousandth of the work and the memory of an order of
all documents, which a billion of them would make every GPU wait for.

The cuts are seen in shuffled order as well. Documents alone would not do: one long document gives hundreds of
neighbouring samples, and a batch of those is a batch of one text.
"""

import threading
from collections.abc import Iterator

import numpy as np

from monograph.train.data.corpus import CHUNK_DOCUMENTS, TokenCorpus
from monograph.train.data.cursor import Cursor
from monograph.train.data.permutation import Permutation, find_seed
from monograph.train.data.sample import Sample, build_sample

SPAN = 1024
"""Documents that are shuffled among each other; divides CHUNK_DOCUMENTS."""
ORDER = f"spans of {SPAN}"
"""What the order of documents is called: a position that was counted in another one means other samples."""
KEPT_EPOCHS = 2
"""A batch may lie across the border of two epochs."""


class EpochLayout:
    """The documents of one epoch in the order they are concatenated; that in which they lie without a seed."""

    def __init__(self, corpus: TokenCorpus, members: np.ndarray, span_tokens: np.ndarray, seed: int | None) -> None:
        self.corpus, self.members, self.seed = corpus, members, seed
        places = np.arange(len(span_tokens))
        self.spans = places if seed is None else Permutation(len(places), seed).apply(places)
        self.span_starts = np.concatenate(([0], np.cumsum(span_tokens[self.spans])))

    @property
    def token_count(self) -> int:
        return int(self.span_starts[-1])

    def find_documents(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """The documents that have tokens in [start, stop) and the places where each of them ends."""
        first = int(np.searchsorted(self.span_starts, start, side="right")) - 1
        last = int(np.searchsorted(self.span_starts, stop, side="left"))
        documents = np.concatenate([self.find_span(place) for place in range(first, last)])
        ends = int(self.span_starts[first]) + np.cumsum(self.corpus.find_lengths(documents))
        here = slice(int(np.searchsorted(ends, start, side="right")), int(np.searchsorted(ends, stop, side="left")) + 1)
        return documents[here], ends[here]

    def find_span(self, place: int) -> np.ndarray:
        """The documents of the span that comes at this place."""
        span = int(self.spans[place])
        documents = self.members[span * SPAN : (span + 1) * SPAN]
        if self.seed is None:
            return documents
        return documents[
            Permutation(len(documents), find_seed("span", self.seed, span)).apply(np.arange(len(documents)))
        ]

    def cut(self, index: int, seq_len: int) -> Sample:
        """The sequence number `index` of the concatenated documents."""
        start = index * seq_len
        stop = min(start + seq_len + 1, self.token_count)
        documents, ends = self.find_documents(start, stop)
        stream = np.empty(stop - start, dtype=np.int64)
        begins = ends - self.corpus.find_lengths(documents)
        for document, begin, end in zip(documents.tolist(), begins.tolist(), ends.tolist(), strict=True):
            left, right = max(begin, start), min(end, stop)
            stream[left - start : right - start] = self.corpus.read(document, left - begin, right - begin)
        inside = ends - start
        return build_sample(stream, inside[inside <= seq_len], seq_len)


class PackedSamples:
    """All samples of one split, by epoch and number."""

    def __init__(self, corpus: TokenCorpus, members: np.ndarray, *, seq_len: int, seed: int, shuffle: bool) -> None:
        self.corpus, self.members = corpus, members
        self.seq_len, self.seed, self.shuffle = seq_len, seed, shuffle
        self._span_tokens = count_span_tokens(corpus, members)
        self.token_count = int(self._span_tokens.sum())
        self.samples_per_epoch = self.token_count // seq_len
        self._layouts: dict[int, EpochLayout] = {}
        self._lock = threading.Lock()

    def sample(self, epoch: int, index: int) -> Sample:
        """The sample that is seen as number `index` of an epoch."""
        if not 0 <= index < self.samples_per_epoch:
            raise IndexError(f"sample {index} of {self.samples_per_epoch}")
        if self.shuffle:
            permutation = Permutation(self.samples_per_epoch, find_seed("samples", self.seed, epoch))
            index = int(permutation.apply(np.array([index]))[0])
        return self.find_layout(epoch).cut(index, self.seq_len)

    def read(self, cursor: Cursor, runs: Iterator[range], closing: threading.Event) -> Iterator[Sample]:
        """The samples of each run, counted from the cursor."""
        for run in runs:
            for number in run:
                if closing.is_set():
                    return
                place = cursor.advance(number, self.samples_per_epoch)
                yield self.sample(place.epoch, place.sample)

    def find_layout(self, epoch: int) -> EpochLayout:
        """The layout of an epoch; the most recent ones are kept."""
        with self._lock:
            if epoch not in self._layouts:
                seed = find_seed("documents", self.seed, epoch) if self.shuffle else None
                while len(self._layouts) >= KEPT_EPOCHS:
                    del self._layouts[next(iter(self._layouts))]
                self._layouts[epoch] = EpochLayout(self.corpus, self.members, self._span_tokens, seed)
            return self._layouts[epoch]


def count_span_tokens(corpus: TokenCorpus, members: np.ndarray) -> np.ndarray:
    """Tokens in each span of these documents: int64, counted in chunks so that this needs little memory."""
    found = [np.zeros(0, np.int64)]
    for start in range(0, len(members), CHUNK_DOCUMENTS):
        lengths = corpus.find_lengths(members[start : start + CHUNK_DOCUMENTS])
        found.append(np.add.reduceat(lengths, np.arange(0, len(lengths), SPAN)))
    return np.concatenate(found)
