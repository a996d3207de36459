"""From a sample's number to the sample itself, without walking through what lies before it.

An epoch is all documents of a split in a new order, one after the other, cut every `seq_len` tokens. To find the
documents under a cut, the epoch keeps where every 64th document starts in that order and searches there:
O(log n) per sample and about four bytes per document.

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

BLOCK = 64
"""Documents between two remembered starts; divides CHUNK_DOCUMENTS."""
KEPT_EPOCHS = 2
"""A batch may lie across the border of two epochs."""


class EpochLayout:
    """The documents of one epoch in the order they are concatenated."""

    def __init__(self, corpus: TokenCorpus, members: np.ndarray, permutation: Permutation | None) -> None:
        self.corpus = corpus
        self.order = members if permutation is None else np.empty_like(members)
        block_tokens = []
        for start in range(0, len(members), CHUNK_DOCUMENTS):
            indices = np.arange(start, min(start + CHUNK_DOCUMENTS, len(members)))
            if permutation is not None:
                self.order[indices] = members[permutation.apply(indices)]
            lengths = corpus.find_lengths(self.order[indices])
            block_tokens.append(np.add.reduceat(lengths, np.arange(0, len(lengths), BLOCK)))
        self.block_starts = np.concatenate(([0], np.cumsum(np.concatenate(block_tokens))))

    @property
    def token_count(self) -> int:
        return int(self.block_starts[-1])

    def find_documents(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """The documents that have tokens in [start, stop) and the places where each of them ends."""
        first = int(np.searchsorted(self.block_starts, start, side="right")) - 1
        last = int(np.searchsorted(self.block_starts, stop, side="left"))
        documents = self.order[first * BLOCK : last * BLOCK]
        ends = int(self.block_starts[first]) + np.cumsum(self.corpus.find_lengths(documents))
        here = slice(int(np.searchsorted(ends, start, side="right")), int(np.searchsorted(ends, stop, side="left")) + 1)
        return documents[here], ends[here]

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
        self.token_count = corpus.count_tokens(members)
        self.samples_per_epoch = self.token_count // seq_len
        self._layouts: dict[int, EpochLayout] = {}
        self._lock = threading.Lock()

    def sample(self, epoch: int, index: int) -> Sample:
        """The sample that is seen as number `index` of an epoch."""
        if not 0 <= index < self.samples_per_epoch:
            raise IndexError(f"sample {index} of {self.samples_per_epoch}")
        if self.shuffle:
            index = int(self._find_permutation("samples", epoch, self.samples_per_epoch).apply(np.array([index]))[0])
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
                permutation = self._find_permutation("documents", epoch, len(self.members)) if self.shuffle else None
                while len(self._layouts) >= KEPT_EPOCHS:
                    del self._layouts[next(iter(self._layouts))]
                self._layouts[epoch] = EpochLayout(self.corpus, self.members, permutation)
            return self._layouts[epoch]

    def _find_permutation(self, what: str, epoch: int, size: int) -> Permutation:
        return Permutation(size, find_seed(what, self.seed, epoch))
