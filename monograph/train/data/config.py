"""Settings of the data: what is read and in which order. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError
from monograph.train.data.named import parse_mixture, parse_validation_sets
from monograph.train.data.source_configs import DataSourceConfig, MixtureSourceConfig

BUILTIN = "builtin"
"""The dataset that every machine has: the source files of Python's standard library."""
HUB_PREFIX = "hf:"
"""A dataset name that starts with this is streamed from the Hugging Face hub."""
TEXT_ENDINGS = (".txt", ".text", ".md", ".rst", ".py")
LINES_ENDINGS = (".jsonl", ".ndjson")
PARQUET_ENDING = ".parquet"
"""Of files: plain text; one JSON object a line; a table."""


@dataclass(kw_only=True, slots=True)
class DataLoaderConfig(Configurable.Config):
    """What is read, what is held out, and in which order it is seen."""

    owner: ClassVar[str] = "monograph.train.data.loader:DataLoader"
    dataset: str = BUILTIN
    """'builtin', a text/jsonl/parquet file, a folder of these, a folder of packed token shards, or 'hf:NAME'."""
    source: DataSourceConfig | None = None
    """Where samples come from, chosen by class (package.module:Class) in place of `dataset`."""
    mixture: tuple[str, ...] = ()
    """Several datasets in place of `dataset`, each as NAME=WEIGHT:DATASET; weights are shares of the samples."""
    source_loss_interval: int = 100
    """Steps between measurements of the loss by source of a mixture, of the update's samples without dropout (about one
    forward of the update); 0 for none."""
    validation_datasets: tuple[str, ...] = ()
    """Validate on these (same forms as dataset), each as NAME=DATASET, one alone without a name; empty holds documents
    of the training data out, of each source of a mixture."""
    held_out_fraction: float = 0.02
    """Share of the documents kept for validation and never trained on; a document's text decides, not its place."""
    text_field: str = "text"
    """Field (jsonl, streams) or column (parquet) that holds a document's text."""
    document_separator: str = ""
    """Cut text files into documents at this string; empty makes each file one document."""
    shuffle: bool = True
    """Shuffle documents and samples anew each epoch, decided by the seed alone."""
    prefetch: int = 4
    """Micro-batches made ahead in the background."""
    verify_shards: Literal["hashes", "sizes"] = "hashes"
    """How token shards are checked at the start: hash everything, each file on one of the ranks that see it, or compare
    sizes only."""
    hf_subset: str = ""
    """Subset (configuration name) of an 'hf:' dataset."""
    hf_split: str = "train"
    """Split of an 'hf:' dataset."""
    hf_revision: str = ""
    """Commit, tag or branch of an 'hf:' dataset; a run looks up once which commit it is, and keeps to it when it goes
    on. Name a commit where other runs must be able to repeat it."""
    stream_buffer: int = 1000
    """Documents a stream holds back to shuffle them, since it cannot be reordered as a whole."""
    stream_lanes: int = 0
    """Files of an 'hf:' dataset that are read side by side: each data-parallel rank reads its share of these lanes, not
    the whole stream. It divides the global batch. 0 chooses, at most 16; with more ranks than that, ask for more."""
    stream_retries: int = 8
    """Attempts in a row, with growing pauses, before a failing stream ends the run."""

    def has_mixture(self) -> bool:
        """Whether samples come from several sources."""
        return bool(self.mixture) or isinstance(self.source, MixtureSourceConfig)

    def check(self) -> None:
        for entry in (*parse_mixture(self.mixture), *parse_validation_sets(self.validation_datasets)):
            if entry.dataset == HUB_PREFIX:
                raise ConfigError(f"{entry.name} is '{HUB_PREFIX}' without a name", do=f"{entry.name}={HUB_PREFIX}NAME")
        if self.source_loss_interval < 0:
            raise ConfigError(
                f"source_loss_interval is {self.source_loss_interval}", why="it counts steps", do="write 0 for none"
            )
        if not self.dataset:
            raise ConfigError("dataset is empty", do=f"--dataloader.dataset {BUILTIN}, a path, or {HUB_PREFIX}NAME")
        if self.dataset == HUB_PREFIX:
            raise ConfigError(f"dataset is '{HUB_PREFIX}' without a name", do=f"--dataloader.dataset {HUB_PREFIX}NAME")
        if not 0 <= self.held_out_fraction < 1:
            raise ConfigError(
                f"held_out_fraction is {self.held_out_fraction}",
                why="it is a share of the documents: at least 0 and below 1",
                do="--dataloader.held_out_fraction 0.02",
            )
        if not self.text_field:
            raise ConfigError(
                "text_field is empty", why="a row's text is found by its name", do="--dataloader.text_field text"
            )
        if self.prefetch < 1:
            raise ConfigError(
                f"prefetch is {self.prefetch}", why="the loader needs room for one batch", do="write 1 or more"
            )
        for name in ("stream_buffer", "stream_lanes", "stream_retries"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}", why="it is a count", do="write 0 or more")
