"""Samples of several readers as one sequence, in an order that can be computed for any of them."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence

from monograph.train.data.cursor import Cursor
from monograph.train.data.interleave import Interleaving
from monograph.train.data.sample import Sample
from monograph.train.data.source import SampleReader


class InterleavedSamples:
    """The samples of several readers. They have no end: each reader begins again when it has been read."""

    samples_per_epoch = None

    def __init__(self, readers: Sequence[SampleReader], order: Interleaving) -> None:
        self.readers, self.order = readers, order

    def sample(self, epoch: int, index: int) -> Sample:
        """The sample number `index`, counted through all readers."""
        number = self.order.find_source(index)
        reader = self.readers[number]
        cursor = Cursor().advance(self.order.count(index, number), reader.samples_per_epoch)
        return self.mark(reader.sample(cursor.epoch, cursor.sample), number)

    def read(self, cursor: Cursor, runs: Iterator[range], closing: threading.Event) -> Iterator[Sample]:
        """The samples of each run, counted from the cursor; each reader is read from front to back."""
        wanted: list[deque[range]] = [deque() for _ in self.readers]
        samples = [
            reader.read(Cursor(), _take_all(waiting), closing)
            for reader, waiting in zip(self.readers, wanted, strict=True)
        ]
        for run in runs:
            for index in (cursor.sample + number for number in run):
                number = self.order.find_source(index)
                position = self.order.count(index, number)
                wanted[number].append(range(position, position + 1))
                sample = next(samples[number], None)
                if sample is None:
                    return
                yield self.mark(sample, number)

    def mark(self, sample: Sample, number: int) -> Sample:
        """The sample of a reader as it is handed on."""
        return sample


def _take_all(waiting: deque[range]) -> Iterator[range]:
    """What is asked for, as it is asked for."""
    while waiting:
        yield waiting.popleft()
