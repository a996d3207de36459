"""Finished samples by number: whatever named arrays a model reads, text or not."""

import hashlib
import threading
from collections.abc import Iterator

import numpy as np

from monograph.errors import DataError
from monograph.train.data.cursor import Cursor
from monograph.train.data.encode import count_noun
from monograph.train.data.permutation import Permutation, find_seed, mix
from monograph.train.data.sample import Sample
from monograph.train.data.source import DataSource, OpenedSamples, SamplePlan
from monograph.train.data.split import find_members


class IndexedSource(DataSource):
    """Samples by number. A source of your own defines `count` and `load`."""

    def count(self, plan: SamplePlan) -> int:
        """How many samples there are."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define count(plan)")

    def load(self, index: int, plan: SamplePlan) -> Sample:
        """Sample number `index` as named arrays; the same number gives the same arrays, in any process."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define load(index, plan)")

    def open(self, plan: SamplePlan) -> OpenedSamples:
        """The samples of a split, which the hash of a sample's number decides, in the epoch's order."""
        total = self.count(plan)
        keys = mix(np.arange(total, dtype=np.uint64), find_seed("held out", 0, 0))
        members = find_members(keys, plan.held_out_fraction, plan.split)
        if not len(members):
            raise DataError(
                f"the {plan.purpose} data is empty: {self.description}",
                why=f"it has {total} samples, and held_out_fraction is {plan.held_out_fraction}",
                do="raise --dataloader.held_out_fraction" if total else "choose another source",
            )
        facts = (*self.identity(), str(total), plan.split, str(plan.held_out_fraction))
        content_hash = hashlib.sha256(repr(facts).encode("utf-8")).hexdigest()
        description = f"{self.description}, {count_noun(len(members), 'sample')} per epoch"
        return OpenedSamples(IndexedSamples(self, members, plan), content_hash, description)


class IndexedSamples:
    """The samples of one split of an IndexedSource, shuffled anew each epoch."""

    def __init__(self, source: IndexedSource, members: np.ndarray, plan: SamplePlan) -> None:
        self.source, self.members, self.plan = source, members, plan
        self.samples_per_epoch = len(members)

    def sample(self, epoch: int, index: int) -> Sample:
        """The sample that is seen as number `index` of an epoch."""
        if not 0 <= index < self.samples_per_epoch:
            raise IndexError(f"sample {index} of {self.samples_per_epoch}")
        if self.plan.shuffle:
            permutation = Permutation(self.samples_per_epoch, find_seed("samples", self.plan.seed, epoch))
            index = int(permutation.apply(np.array([index]))[0])
        return self.source.load(int(self.members[index]), self.plan)

    def read(self, cursor: Cursor, runs: Iterator[range], closing: threading.Event) -> Iterator[Sample]:
        """The samples of each run, counted from the cursor."""
        for run in runs:
            for number in run:
                if closing.is_set():
                    return
                position = cursor.advance(number, self.samples_per_epoch)
                yield self.sample(position.epoch, position.sample)
