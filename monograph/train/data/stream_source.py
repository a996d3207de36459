"""Documents that are read from front to back: too many to read them whole, or without an end."""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from monograph.train.data.checks import check_vocab
from monograph.train.data.document import Document
from monograph.train.data.source import OpenedSamples, SamplePlan
from monograph.train.data.source_configs import StreamSourceConfig
from monograph.train.data.stream_samples import StreamSamples
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

    def open(self, plan: SamplePlan) -> OpenedSamples:
        """Sequences cut from the stream; documents are shuffled block by block, for validation they are read as they
        come, once."""
        check_vocab(plan.tokenizer, plan.vocab_size)
        is_validation = plan.purpose == "validation"
        samples = StreamSamples(
            self,
            plan.tokenizer,
            split=plan.split,
            held_out_fraction=plan.held_out_fraction,
            seq_len=plan.seq_len,
            seed=plan.seed,
            block_documents=self.config.buffer,
            shuffles=plan.shuffle and not is_validation,
            is_endless=not is_validation,
        )
        samples.check_start()
        order = (samples.split, samples.held_out_fraction, samples.block_documents, samples.shuffles)
        identity = (*self.identity(), plan.tokenizer.fingerprint)
        content_hash = hashlib.sha256(repr((identity, order)).encode("utf-8")).hexdigest()
        return OpenedSamples(samples, content_hash, f"{self.description}, {plan.tokenizer.description}, streamed")
