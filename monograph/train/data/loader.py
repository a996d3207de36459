"""The data loader: from a dataset's name to micro-batches, from any position, for any number of parts.

documents -> tokens -> the epoch's order -> cuts of seq_len -> samples -> this part's micro-batches
"""

import hashlib
import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from monograph.config.configurable import Configurable
from monograph.errors import DataError
from monograph.log import get_log
from monograph.train.data.batch import Batch, Sample, stack_samples
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.corpus import TokenCorpus
from monograph.train.data.cursor import Cursor
from monograph.train.data.encode import count
from monograph.train.data.load import (
    check_length,
    check_tokens,
    check_vocab,
    find_split,
    is_stream,
    load_corpus,
    open_stream,
)
from monograph.train.data.packing import PackedSamples
from monograph.train.data.prefetcher import Prefetcher
from monograph.train.data.split import Split
from monograph.train.data.stream import RowFactory
from monograph.train.data.stream_samples import StreamSamples
from monograph.train.data.tokenizer import Tokenizer

log = get_log(__name__)


class SampleSource(Protocol):
    """Numbered samples, however they come about."""

    @property
    def samples_per_epoch(self) -> int | None: ...
    def sample(self, epoch: int, index: int) -> Sample: ...
    def read(self, cursor: Cursor, runs: Iterator[range], closing: threading.Event) -> Iterator[Sample]: ...


class DataLoader(Configurable):
    """The samples of one split in an order that only the data, the seed and `seq_len` decide.

    It keeps no position: whoever trains owns the cursor and hands it to `batches`.
    """

    Config = DataLoaderConfig

    def __init__(
        self,
        config: DataLoaderConfig,
        *,
        tokenizer: Tokenizer,
        seq_len: int,
        vocab_size: int,
        seed: int,
        split: Split = "train",
        rows: RowFactory | None = None,
        corpus: TokenCorpus | None = None,
    ) -> None:
        """`rows` takes the place of the hub for an 'hf:' dataset; `corpus` that of a dataset already loaded."""
        check_vocab(tokenizer, vocab_size)
        self.config, self.tokenizer, self.seq_len, self.vocab_size = config, tokenizer, seq_len, vocab_size
        self.seed, self.split, self.rows = seed, split, rows
        self.corpus: TokenCorpus | None = None
        self._samples: SampleSource = self._open_stream() if is_stream(self.dataset) else self._open_corpus(corpus)
        log.info("data: %s: %s; content hash %s", split, self.description, self.content_hash[:16])

    @property
    def dataset(self) -> str:
        """The name of what this split reads."""
        return (self.split == "validation" and self.config.validation_dataset) or self.config.dataset

    @property
    def samples_per_epoch(self) -> int | None:
        """Sequences in one pass over the data; None for a stream, which has one epoch without end."""
        return self._samples.samples_per_epoch

    def sample(self, epoch: int, index: int) -> Sample:
        """The sample seen as number `index` of an epoch."""
        return self._samples.sample(epoch, index)

    def batches(
        self, cursor: Cursor, *, local_batch_size: int, global_batch_size: int, part: int = 0, parts: int = 1
    ) -> Prefetcher[Batch]:
        """This part's micro-batches from the cursor on, without end, made ahead in the background.

        An update uses the next `global_batch_size` samples; part p of `parts` takes the p-th contiguous run of them. So
        all parts together see the same samples whatever their number. Close it, or use it as a context.
        """
        check_batch_sizes(local_batch_size, global_batch_size, parts)
        if not 0 <= part < parts:
            raise ValueError(f"part {part} of {parts}")
        cursor.check(self.samples_per_epoch)
        share = global_batch_size // parts

        def make(closing: threading.Event) -> Iterator[Batch]:
            starts = itertools.count(part * share, global_batch_size)
            samples = self._samples.read(cursor, (range(start, start + share) for start in starts), closing)
            for number in itertools.count():
                group = list(itertools.islice(samples, local_batch_size))
                if len(group) < local_batch_size:
                    return
                update = number * local_batch_size // share
                yield stack_samples(group, cursor.advance(update * global_batch_size, self.samples_per_epoch))

        return Prefetcher(make, depth=self.config.prefetch, name=f"data {self.split}")

    def with_split(self, split: Split) -> "DataLoader":
        """The loader of the other split; what is loaded already is not loaded again."""
        corpus = None if self.config.validation_dataset else self.corpus
        return type(self)(
            self.config,
            tokenizer=self.tokenizer,
            seq_len=self.seq_len,
            vocab_size=self.vocab_size,
            seed=self.seed,
            split=split,
            rows=self.rows,
            corpus=corpus,
        )

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides which sample a cursor means. Belongs beside the cursor in a checkpoint."""
        return {
            "content_hash": self.content_hash,
            "samples_per_epoch": self.samples_per_epoch,
            "seq_len": self.seq_len,
            "seed": self.seed,
            "shuffle": self.config.shuffle,
        }

    def check_fingerprint(self, saved: Mapping[str, Any]) -> None:
        """Refuse to continue at a position that was counted in other data."""
        mine = self.fingerprint()
        changed = [
            f"{name} was {saved.get(name)!r} and is {mine.get(name)!r}"
            for name in sorted({*mine, *saved})
            if saved.get(name) != mine.get(name)
        ]
        if changed:
            raise DataError(
                "the data is not the data of the saved run",
                why=f"{'; '.join(changed)}; the saved position would mean other samples",
                do="restore the dataset and settings, or start a new run from the saved weights alone",
            )

    def _open_corpus(self, corpus: TokenCorpus | None) -> PackedSamples:
        self.corpus = corpus = corpus or load_corpus(self.dataset, self.config, self.tokenizer)
        check_tokens(corpus, self.vocab_size)
        if self.config.validation_dataset:
            members = find_split(corpus, 0.0, "train")
        else:
            members = find_split(corpus, self.config.held_out_fraction, self.split)
        samples = PackedSamples(corpus, members, seq_len=self.seq_len, seed=self.seed, shuffle=self.config.shuffle)
        check_length(samples.token_count, len(members), self.seq_len, self.split, corpus.description)
        self.content_hash = hashlib.sha256(corpus.content_hash.encode() + corpus.keys[members].tobytes()).hexdigest()
        self.description = (
            f"{corpus.description}, {self.tokenizer.description}, {count(len(members))} documents, "
            f"{count(samples.token_count)} tokens, {count(samples.samples_per_epoch)} samples per epoch"
        )
        return samples

    def _open_stream(self) -> StreamSamples:
        config = self.config
        stream = open_stream(self.dataset, config, self.rows)
        samples = StreamSamples(
            stream,
            self.tokenizer,
            split="train" if config.validation_dataset else self.split,
            held_out_fraction=0.0 if config.validation_dataset else config.held_out_fraction,
            seq_len=self.seq_len,
            seed=self.seed,
            shuffle_documents=config.stream_buffer if config.shuffle else 0,
        )
        samples.check_start()
        identity = (stream.description, config.hf_revision, config.text_field, self.tokenizer.fingerprint)
        order = (samples.split, samples.held_out_fraction, samples.shuffle_documents)
        self.content_hash = hashlib.sha256(repr((identity, order)).encode("utf-8")).hexdigest()
        self.description = f"{stream.description}, {self.tokenizer.description}, streamed"
        return samples


def check_batch_sizes(local_batch_size: int, global_batch_size: int, parts: int) -> None:
    """An update must be a whole number of micro-batches on every part."""
    together = local_batch_size * parts
    if global_batch_size < 1 or global_batch_size % together:
        nearest = max(1, round(global_batch_size / together)) * together
        raise DataError(
            f"training.global_batch_size {global_batch_size} cannot be shared by {parts} data-parallel parts "
            f"with training.local_batch_size {local_batch_size}",
            why=f"it must be a multiple of {parts} x {local_batch_size} = {together}",
            do=f"--training.global_batch_size {nearest}",
        )
