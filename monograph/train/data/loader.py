"""The data loader: from a source to micro-batches, from any position, for any number of parts.

source -> the epoch's order -> samples -> this part's micro-batches
"""

import functools
import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from monograph.config.configurable import Configurable
from monograph.errors import DataError
from monograph.labels import IGNORED_LABEL
from monograph.log import get_log
from monograph.train.data.batch import Batch, stack_samples
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.cursor import Cursor
from monograph.train.data.dataset_name import choose_source, find_source
from monograph.train.data.file_checks import FileChecker, check_here
from monograph.train.data.lanes import LaneSamples
from monograph.train.data.mixture import MixedSamples, MixtureSource
from monograph.train.data.named import VALIDATION, parse_validation_sets
from monograph.train.data.prefetcher import Prefetcher
from monograph.train.data.revisions import Revisions
from monograph.train.data.sample import LABELS, Sample
from monograph.train.data.shared_texts import warn_of_shared
from monograph.train.data.source import CorpusLoader, DataSource, SamplePlan
from monograph.train.data.split import HeldOutTexts, Split
from monograph.train.data.stream_samples import StreamSamples
from monograph.train.data.tokenizer import Tokenizer

VALIDATION_SEED = 0
"""Orders the samples of every validation set: the first ones are the same for every run, whatever its own seed is."""

_STREAMED = StreamSamples | LaneSamples | MixedSamples
_SHOWN_DIGITS, _HASH_DIGITS = 12, 32
_TOKENIZER = "tokenizer"
log = get_log(__name__)


class DataLoader(Configurable):
    """The samples of one split in an order that only the data, the seed and `seq_len` decide; for validation, the data
    and `seq_len` alone.

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
        revisions: Revisions | None = None,
        check_files: FileChecker = check_here,
        samples_per_update: int = 1,
        load_corpus: CorpusLoader | None = None,
        held_out: HeldOutTexts | None = None,
    ) -> None:
        """`source` takes the place of the one that the config names: one that is open already, called `name`.

        `revisions` decides which commits of datasets on the hub are read; without it, what their names mean now.
        `check_files` reads files whose hashes are known; `samples_per_update` are those of all ranks together, by
        which the files of a stream are shared between them. `load_corpus` loads a text source for several ranks.
        `held_out` was decided when other sources were opened too.
        """
        self.revisions = revisions or Revisions()
        self.config, self.split, self.name = config, split, name or split
        is_whole, is_validation = bool(config.validation_datasets), split == "validation"
        self.plan = SamplePlan(
            tokenizer=tokenizer,
            seq_len=seq_len,
            vocab_size=vocab_size,
            seed=VALIDATION_SEED if is_validation else seed,
            shuffle=config.shuffle or is_validation,
            split="train" if is_whole else split,
            held_out_fraction=0.0 if is_whole else config.held_out_fraction,
            purpose=split,
            check_files=check_files,
            samples_per_update=samples_per_update,
            load_corpus=load_corpus,
            held_out=held_out,
        )
        self.source: DataSource = source or self.revisions.pin(choose_source(config)).build()
        self._own_revisions = dict(self.revisions.found)  # those of validation sets, pinned later, decide no position
        self.plan = self.source.hold_out(self.plan)
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

    def first_batches(self, count: int, *, local_batch_size: int, part: int = 0, parts: int = 1) -> list[Batch]:
        """This part's micro-batches of the first `count` samples, or of all there are: each is read once.

        All parts together see the same samples whatever their number, and each has as many micro-batches. Where the
        samples run out, one without labels takes the place, so that it does not count.
        """
        total = self.samples_per_epoch
        kept = self._read(range(count)) if total is None else []  # how many a stream has is known at its end
        count = min(count, len(kept) if total is None else total)
        together = local_batch_size * parts
        self._check_first(count, together)
        batches = []
        for begin in range(part * local_batch_size, -(-count // together) * together, together):
            run = range(begin, max(begin, min(begin + local_batch_size, count)))
            group = kept[run.start : run.stop] if total is None else self._read(run)
            if len(group) < local_batch_size:
                group += [self._unlabelled] * (local_batch_size - len(group))
            batches.append(stack_samples(group, Cursor(), first_number=begin))
        return batches

    def _read(self, run: range) -> list[Sample]:
        return list(self.samples.reader.read(Cursor(), iter([run]), threading.Event()))

    def _check_first(self, count: int, together: int) -> None:
        """Samples without labels must fill whole micro-batches."""
        if not count:
            raise DataError(
                f"{self.name}: there is no sample of {self.plan.seq_len} tokens",
                why=f"the data is shorter: {self.samples.description}",
                do="more data, or a larger --dataloader.held_out_fraction",
            )
        if count % together and LABELS not in self.sample(0, 0):
            whole = count // together * together
            raise DataError(
                f"{self.name}: {count} samples do not fill micro-batches of {together} over all data-parallel ranks",
                why="each counts once, and without labels nothing else can be left out of the loss",
                do=f"--validator.samples {whole}" if whole else "more validation data, or smaller micro-batches",
            )

    @functools.cached_property
    def _unlabelled(self) -> Sample:
        """A sample that no loss counts."""
        sample = self.sample(0, 0)
        return {**sample, LABELS: np.full_like(sample[LABELS], IGNORED_LABEL)}

    def open_validation_sets(self) -> dict[str, "DataLoader"]:
        """What is validated on, by name: datasets of their own, or what is held out of each source.

        What is loaded already is not loaded again.
        """
        named = parse_validation_sets(self.config.validation_datasets)
        if named:
            sources = {each.name: self.revisions.pin(find_source(each.dataset, self.config)).build() for each in named}
            sets = {name: self._with_source(source, name) for name, source in sources.items()}
            trained_on = self.source.find_corpora(self.plan)
            for name, held_out in sets.items():
                warn_of_shared(name, held_out.source.find_corpora(held_out.plan), trained_on)
            return sets
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
            revisions=self.revisions,
            check_files=self.plan.check_files,
            load_corpus=self.plan.load_corpus,
            held_out=None if self.config.validation_datasets else self.plan.held_out,
        )

    @property
    def mixture(self) -> MixedSamples | None:
        """How samples are taken from several sources; None when there is one."""
        reader = self.samples.reader
        return reader if isinstance(reader, MixedSamples) else None

    def find_bookmark(self, cursor: Cursor) -> Any:
        """Where a stream is to be read from to continue at a cursor; None where samples are found by their numbers."""
        reader = self.samples.reader
        return reader.find_bookmark(cursor.sample) if isinstance(reader, _STREAMED) else None

    def use_bookmark(self, saved: Any) -> None:
        """Know what `find_bookmark` of an earlier process found; without it, a stream is read from its start."""
        reader = self.samples.reader
        if saved is not None and isinstance(reader, _STREAMED):
            reader.use_bookmark(saved)

    def fingerprint(self) -> dict[str, Any]:
        """Everything that decides which sample a cursor means. Belongs beside the cursor in a checkpoint."""
        return ({"revisions": self._own_revisions} if self._own_revisions else {}) | {
            "content_hash": self.samples.content_hash,
            _TOKENIZER: self.plan.tokenizer.fingerprint,
            "samples_per_epoch": self.samples_per_epoch,
            "seq_len": self.plan.seq_len,
            "seed": self.plan.seed,
            "shuffle": self.config.shuffle,
        }

    def find_changes(self, saved: Mapping[str, Any]) -> list[str]:
        """What of a saved fingerprint is different here, in words."""
        mine = self.fingerprint()
        if _TOKENIZER not in saved:  # earlier versions did not save it
            del mine[_TOKENIZER]
        return [
            f"{name} was {_shorten(saved.get(name))} and is {_shorten(mine.get(name))}"
            for name in sorted({*mine, *saved})
            if saved.get(name) != mine.get(name)
        ]

    def check_fingerprint(self, saved: Mapping[str, Any], *, do: str = "") -> None:
        """Refuse to continue at a position that was counted in other data; `do` says which flags help."""
        if changed := self.find_changes(saved):
            raise DataError(
                "the data is not the data of the saved run",
                why=f"{'; '.join(changed)}; the saved position would mean other samples",
                do=do or "restore the dataset and settings, or --model.from RUN --job.dump_folder NEW",
            )


def _shorten(value: Any) -> str:
    """A value as it is printed; of a long hash, what tells it from another one."""
    return repr(value[:_SHOWN_DIGITS]) if isinstance(value, str) and len(value) > _HASH_DIGITS else repr(value)


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
