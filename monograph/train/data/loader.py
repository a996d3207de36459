"""The data loader: from a source to micro-batches, from any position, for any number of parts.

source -> the epoch's order -> samples -> this part's micro-batches
"""

import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from monograph.config.configurable import Configurable
from monograph.errors import DataError
from monograph.log import get_log
from monograph.train.data.batch import Batch, stack_samples
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.cursor import Cursor
from monograph.train.data.dataset_name import choose_source, find_source
from monograph.train.data.mixture import MixedSamples, MixtureSource
from monograph.train.data.named import VALIDATION, parse_validation_sets
from monograph.train.data.prefetcher import Prefetcher
from monograph.train.data.sample import Sample
from monograph.train.data.source import DataSource, SamplePlan
from monograph.train.data.split import Split
from monograph.train.data.tokenizer import Tokenizer

log = get_log(__name__)


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
        vocab_size: int | None = None,
        seed: int,
        split: Split = "train",
        source: DataSource | None = None,
        name: str = "",
    ) -> None:
        """`source` takes the place of the one that the config names: one that is open already, called `name`."""
        self.config, self.split, self.name = config, split, name or split
        is_whole = bool(config.validation_datasets)
        self.plan = SamplePlan(
            tokenizer=tokenizer,
            seq_len=seq_len,
            vocab_size=vocab_size,
            seed=seed,
            shuffle=config.shuffle,
            split="train" if is_whole else split,
            held_out_fraction=0.0 if is_whole else config.held_out_fraction,
            purpose=split,
        )
        self.source: DataSource = source or choose_source(config).build()
        self.samples = self.source.open(self.plan)
        log.info("data: %s: %s; content hash %s", self.name, self.samples.description, self.samples.content_hash[:16])

    @property
    def samples_per_epoch(self) -> int | None:
        """Sequences in one pass over the data; None for a stream, which has one epoch without end."""
        return self.samples.reader.samples_per_epoch

    def sample(self, epoch: int, index: int) -> Sample:
        """The sample seen as number `index` of an epoch."""
        return self.samples.reader.sample(epoch, index)

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
            samples = self.samples.reader.read(cursor, (range(start, start + share) for start in starts), closing)
            behind = cursor.count_samples(self.samples_per_epoch)
            for number in itertools.count():
                group = list(itertools.islice(samples, local_batch_size))
                if len(group) < local_batch_size:
                    return
                update, offset = divmod(number * local_batch_size, share)
                first = behind + update * global_batch_size + part * share + offset
                begin = cursor.advance(update * global_batch_size, self.samples_per_epoch)
                yield stack_samples(group, begin, first_number=first)

        return Prefetcher(make, depth=self.config.prefetch, name=f"data {self.split}")

    def open_validation_sets(self) -> dict[str, "DataLoader"]:
        """What is validated on, by name: datasets of their own, or what is held out of each source.

        What is loaded already is not loaded again.
        """
        named = parse_validation_sets(self.config.validation_datasets)
        if named:
            sources = {each.name: find_source(each.dataset, self.config).build() for each in named}
            return {name: self._with_source(source, name) for name, source in sources.items()}
        if isinstance(self.source, MixtureSource):
            parts = zip(self.source.names, self.source.sources, strict=True)
            return {name: self._with_source(source, name) for name, source in parts}
        return {VALIDATION: self._with_source(self.source, VALIDATION)}

    def _with_source(self, source: DataSource, name: str) -> "DataLoader":
        """The validation data of a source."""
        return type(self)(
            self.config,
            tokenizer=self.plan.tokenizer,
            seq_len=self.plan.seq_len,
            vocab_size=self.plan.vocab_size,
            seed=self.plan.seed,
            split="validation",
            source=source,
            name=name,
        )

    @property
    def mixture(self) -> MixedSamples | None:
        """How samples are taken from several sources; None when there is one."""
        reader = self.samples.reader
        return reader if isinstance(reader, MixedSamples) else None

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides which sample a cursor means. Belongs beside the cursor in a checkpoint."""
        return {
            "content_hash": self.samples.content_hash,
            "samples_per_epoch": self.samples_per_epoch,
            "seq_len": self.plan.seq_len,
            "seed": self.plan.seed,
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
