"""Several sources as one: samples in the proportion of weights, in an order that one global cursor decides."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from monograph.errors import DataError
from monograph.log import get_log
from monograph.train.data.batch import describe_sample
from monograph.train.data.corpus import TokenCorpus
from monograph.train.data.interleave import Interleaving
from monograph.train.data.interleaved_samples import InterleavedSamples
from monograph.train.data.lanes import LaneSamples
from monograph.train.data.permutation import find_seed
from monograph.train.data.sample import Sample
from monograph.train.data.source import DataSource, OpenedSamples, SamplePlan, SampleReader
from monograph.train.data.source_configs import MixtureSourceConfig
from monograph.train.data.stream_samples import StreamSamples

T = TypeVar("T")
log = get_log(__name__)
SOURCE = "source"
"""The number of the source that a sample comes from, among the arrays of the sample."""


class MixtureSource(DataSource):
    """Sources with weights."""

    Config = MixtureSourceConfig

    def __init__(self, config: MixtureSourceConfig) -> None:
        super().__init__(config)
        self.names = [part.name for part in config.parts]
        self.sources: list[DataSource] = [part.source.build() for part in config.parts]

    @property
    def description(self) -> str:
        """Which sources, with their shares."""
        return ", ".join(f"{100 * share:.3g} % {name}" for name, share in self.find_shares().items())

    def find_shares(self) -> dict[str, float]:
        """The part of the samples that each source has."""
        total = sum(part.weight for part in self.config.parts)
        return {part.name: part.weight / total for part in self.config.parts}

    def find_corpora(self, plan: SamplePlan) -> list[TokenCorpus]:
        """Those of all sources: a text that is held out of one is trained on through none."""
        return [corpus for corpora in self._ask(lambda source: source.find_corpora(plan)) for corpus in corpora]

    def hold_out(self, plan: SamplePlan) -> SamplePlan:
        """Says for which sources copies of held-out samples are not looked for."""
        others = [name for name, source in zip(self.names, self.sources, strict=True) if not source.is_split_by_text]
        if others and plan.held_out is None and plan.held_out_fraction > 0 and len(self.sources) > 1:
            log.info(
                "data: mixture: samples of %s are held out by their numbers; copies of them in other sources are "
                "trained on",
                ", ".join(others),
            )
        return super().hold_out(plan)

    def _ask(self, ask: Callable[[DataSource], T]) -> list[T]:
        """An answer of every source; an error names its source."""
        answers = []
        for name, source in zip(self.names, self.sources, strict=True):
            try:
                answers.append(ask(source))
            except DataError as error:
                raise DataError(f"dataloader.mixture, {name}: {error.what}", why=error.why, do=error.do) from None
        return answers

    def open(self, plan: SamplePlan) -> OpenedSamples:
        """The samples of a split of every source, interleaved."""
        plan = self.hold_out(plan)
        shares = dict(zip(self.sources, self.find_shares().values(), strict=True))
        opened = self._ask(
            lambda source: source.open(replace(plan, samples_per_update=plan.samples_per_update * shares[source]))
        )
        weights = [part.weight for part in self.config.parts]
        hashes = [each.content_hash for each in opened]
        sizes = [each.reader.samples_per_epoch for each in opened]
        reader = MixedSamples([each.reader for each in opened], self.names, weights, plan.seed)
        lines = "; ".join(f"{name}: {each.description}" for name, each in zip(self.names, opened, strict=True))
        content_hash = hashlib.sha256(repr((self.names, weights, hashes, sizes)).encode("utf-8")).hexdigest()
        return OpenedSamples(reader, content_hash, f"mixture of {self.description} ({lines})")


class MixedSamples(InterleavedSamples):
    """The samples of a mixture, each marked with its source."""

    def __init__(
        self, readers: Sequence[SampleReader], names: Sequence[str], weights: Sequence[float], seed: int
    ) -> None:
        super().__init__(readers, Interleaving(weights, find_seed("mixture", seed)))
        self.names = names

    def count_seen(self, samples: int) -> dict[str, int]:
        """How many of the first `samples` samples came from each source."""
        return {name: self.order.count(samples, number) for number, name in enumerate(self.names)}

    def find_bookmark(self, sample: int) -> dict[str, Any]:
        """Where to begin to read each stream for a sample; plain numbers."""
        return {
            name: reader.find_bookmark(self.order.count(sample, number))
            for number, (name, reader) in enumerate(zip(self.names, self.readers, strict=True))
            if isinstance(reader, StreamSamples | LaneSamples)
        }

    def use_bookmark(self, saved: Mapping[str, Any]) -> None:
        """Know what `find_bookmark` of an earlier process found."""
        for name, reader in zip(self.names, self.readers, strict=True):
            if name in saved and isinstance(reader, StreamSamples | LaneSamples):
                reader.use_bookmark(saved[name])

    def mark(self, sample: Sample, number: int) -> Sample:
        """The sample with the number of its source."""
        if SOURCE in sample:
            raise DataError(
                f"samples of {self.names[number]} have an array called {SOURCE} ({describe_sample(sample)})",
                why="a mixture notes there which source a sample comes from",
                do="let the source use another name",
            )
        return {**sample, SOURCE: np.array(number, dtype=np.int64)}
