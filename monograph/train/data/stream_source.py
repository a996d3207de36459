"""Documents that are read from front to back: too many to read them whole, or without an end."""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from monograph.train.data.checks import check_vocab
from monograph.train.data.corpus import TokenCorpus
from monograph.train.data.document import Document
from monograph.train.data.lanes import LaneSamples, choose_lanes
from monograph.train.data.permutation import find_seed
from monograph.train.data.source import OpenedSamples, SamplePlan
from monograph.train.data.source_configs import StreamSourceConfig
from monograph.train.data.stream_samples import DocumentStream, StreamSamples
from monograph.train.data.text_source import TextSource


class StreamSource(TextSource):
    """Documents in a stable order, read again from the start to continue in the middle."""

    Config: ClassVar[Any] = StreamSourceConfig

    def read(self, pause: Callable[[float], object] = time.sleep) -> Iterator[Document]:
        """All documents from the first one on. Whoever waits does so with `pause`, and ends when it returns true."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define read(pause)")

    def read_from(self, place: tuple[int, ...], pause: Callable[[float], object] = time.sleep) -> Iterator[Document]:
        """The documents from a place on (of a `Document`), each with its own; here those before it are read as well."""
        for number, document in enumerate(self.read(pause)):
            if not place or number >= place[0]:
                yield replace(document, place=(number,))

    def count_files(self) -> int:
        """Files that can be read apart from each other; one for a stream that is only read from its start."""
        return 1

    def take_lane(self, lane: int, lanes: int) -> DocumentStream:
        """The stream of every `lanes`-th file from file `lane` on."""
        if lanes > 1:
            raise NotImplementedError(f"{type(self).__qualname__} has one lane")
        return self

    def find_corpora(self, plan: SamplePlan) -> tuple[TokenCorpus, ...]:
        """None: its texts are known when they have been read."""
        return ()

    def open(self, plan: SamplePlan) -> OpenedSamples:
        """Sequences cut from the stream; documents are shuffled block by block, for validation they are read as they
        come, once."""
        check_vocab(plan.tokenizer, plan.vocab_size)
        is_validation = plan.purpose == "validation"
        held_out = self.hold_out(plan).held_out
        assert held_out is not None
        files = self.count_files()
        count = 1 if is_validation else choose_lanes(self.config.lanes, files, plan.samples_per_update)
        block = max(self.config.buffer // count, 1)
        lanes = [
            StreamSamples(
                self.take_lane(number, count),
                plan.tokenizer,
                split=plan.split,
                held_out=held_out,
                seq_len=plan.seq_len,
                seed=plan.seed if count == 1 else find_seed("lane", plan.seed, number),
                block_documents=block,
                shuffles=plan.shuffle and not is_validation,
                is_endless=not is_validation,
            )
            for number in range(count)
        ]
        samples = lanes[0] if count == 1 else LaneSamples(lanes, plan.samples_per_update)
        samples.check_start()
        order = (plan.split, held_out.fraction, block, lanes[0].shuffles, files)
        by_lanes = () if count == 1 else (count, plan.samples_per_update)
        identity = (*self.identity(), plan.tokenizer.fingerprint, *filter(None, [held_out.describe()]))
        content_hash = hashlib.sha256(repr((identity, order, *by_lanes)).encode("utf-8")).hexdigest()
        read = "streamed" if count == 1 else f"streamed in {count} lanes of {files} files"
        return OpenedSamples(samples, content_hash, f"{self.description}, {plan.tokenizer.description}, {read}")
