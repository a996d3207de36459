"""What a data source is: something that opens the samples of a split, in an order that only the plan decides.

Three bases do most of the work, and one of them fits most data:

    TextSource      documents, read whole, tokenized and packed           you write read()
    StreamSource    documents without an end in sight, front to back      you write read()
    IndexedSource   finished samples by number: any named arrays          you write count() and load()

The built-in sources (sources.py) are subclasses of the same bases.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from monograph.config.configurable import Configurable
from monograph.config.json_form import dump_json
from monograph.config.references import name_of
from monograph.train.data.corpus import TokenCorpus
from monograph.train.data.cursor import Cursor
from monograph.train.data.file_checks import FileChecker, check_here
from monograph.train.data.hold_out import plan_held_out
from monograph.train.data.sample import Sample
from monograph.train.data.source_configs import DataSourceConfig
from monograph.train.data.split import HeldOutTexts, Split
from monograph.train.data.tokenizer import Tokenizer

CorpusLoader = Callable[[Any, Tokenizer], TokenCorpus]
"""Loads the corpus of a text source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePlan:
    """What the loader asks of a source."""

    tokenizer: Tokenizer
    """For text; other data leaves it alone."""
    seq_len: int
    """Tokens in one sequence."""
    vocab_size: int | None
    """Ids the model has embeddings for; None for a model that reads no tokens."""
    seed: int
    """Decides the order, with the epoch's number."""
    shuffle: bool
    """Whether each epoch has an order of its own."""
    split: Split
    """Which part of the data."""
    held_out_fraction: float
    """Share of the data that is validation."""
    purpose: Split
    """What the samples are for: validation may have a dataset of its own, which is not split."""
    check_files: FileChecker = check_here
    """Reads the files whose hashes are known: here, or each on one of the ranks that share them."""
    load_corpus: CorpusLoader | None = None
    """Loads the corpus of a text source once for all ranks of a node; None loads it into this process."""
    samples_per_update: float = 1.0
    """Samples of this source in one update over all ranks, on average; they decide the lanes of a stream."""
    held_out: HeldOutTexts | None = None
    """The texts that are validation, once they are decided for all sources together."""


class SampleReader(Protocol):
    """Numbered samples, however they come about."""

    @property
    def samples_per_epoch(self) -> int | None:
        """None for a stream, whose samples are counted through all passes."""
        ...

    def sample(self, epoch: int, index: int) -> Sample:
        """The sample seen as number `index` of an epoch."""
        ...

    def read(self, cursor: Cursor, runs: Iterator[range], closing: threading.Event) -> Iterator[Sample]:
        """The samples of each run, counted from the cursor, until `closing` is set."""
        ...


@dataclass(frozen=True, slots=True)
class OpenedSamples:
    """The samples of one split, and what identifies them."""

    reader: SampleReader
    content_hash: str
    """Two sources with the same hash, seed and length give the same samples; a checkpoint keeps it."""
    description: str
    """What is read, for the log."""


class DataSource(Configurable):
    """Where samples come from. It keeps no position: the loader asks for samples by number."""

    Config: ClassVar[Any] = DataSourceConfig
    is_split_by_text: ClassVar[bool] = False
    """Whether copies of a text are on one side of the split, also those in other sources."""

    def __init__(self, config: DataSourceConfig) -> None:
        self.config: Any = config

    @property
    def description(self) -> str:
        """What is read, for the log and for errors."""
        return type(self).__qualname__

    def identity(self) -> tuple[str, ...]:
        """What decides the content, for sources whose content cannot be hashed: class and settings."""
        return (name_of(type(self.config)), dump_json(self.config))

    def find_corpora(self, plan: SamplePlan) -> Sequence[TokenCorpus]:
        """The corpora whose texts are all known now; none for streams and for samples that are no texts."""
        return ()

    def hold_out(self, plan: SamplePlan) -> SamplePlan:
        """The plan with the texts that are held out, decided for all parts of this source together."""
        if plan.held_out is not None:
            return plan
        corpora = self.find_corpora(plan) if plan.held_out_fraction > 0 else ()
        return replace(plan, held_out=plan_held_out(corpora, plan.held_out_fraction, plan.seq_len))

    def open(self, plan: SamplePlan) -> OpenedSamples:
        """The samples that the plan asks for."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define open(plan)")
