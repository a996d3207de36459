"""Settings of data sources: where samples come from. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError


@dataclass(kw_only=True, slots=True)
class DataSourceConfig(Configurable.Config):
    """What every source is; your own is one flag away: --dataloader.source package.module:Class."""

    owner: ClassVar[str] = "monograph.train.data.source:DataSource"
    is_base: ClassVar[bool] = True


@dataclass(kw_only=True, slots=True)
class BuiltinSourceConfig(DataSourceConfig):
    """The source files of Python's standard library; in short: --dataloader.dataset builtin."""

    owner: ClassVar[str] = "monograph.train.data.sources:BuiltinSource"


@dataclass(kw_only=True, slots=True)
class FileSourceConfig(DataSourceConfig):
    """A text, jsonl or parquet file, or a folder of these; in short: --dataloader.dataset PATH."""

    owner: ClassVar[str] = "monograph.train.data.sources:FileSource"
    path: str
    """The file or folder."""
    text_field: str = "text"
    """Field (jsonl) or column (parquet) that holds a document's text."""
    document_separator: str = ""
    """Cut text files into documents at this string; empty makes each file one document."""


@dataclass(kw_only=True, slots=True)
class ShardSourceConfig(DataSourceConfig):
    """A folder that `monograph data pack` wrote; in short: --dataloader.dataset FOLDER."""

    owner: ClassVar[str] = "monograph.train.data.sources:ShardSource"
    folder: str
    """Folder of the token shards."""
    verify: Literal["hashes", "sizes"] = "hashes"
    """How they are checked at the start: read and hash everything, or compare sizes only (very large sets)."""


@dataclass(kw_only=True, slots=True)
class StreamSourceConfig(DataSourceConfig):
    """What documents that are read from front to back have in common."""

    owner: ClassVar[str] = "monograph.train.data.stream_source:StreamSource"
    is_base: ClassVar[bool] = True
    buffer: int = 1000
    """Documents held back to shuffle them, since a stream cannot be reordered as a whole; lanes share them."""
    lanes: int = 0
    """Files of the stream that are read side by side, so that ranks read their own; 0 chooses."""

    def check(self) -> None:
        for name in ("buffer", "lanes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}", why="it is a count", do="write 0 or more")


@dataclass(kw_only=True, slots=True)
class HubSourceConfig(StreamSourceConfig):
    """A dataset that is streamed from the Hugging Face hub; in short: --dataloader.dataset hf:NAME."""

    owner: ClassVar[str] = "monograph.train.data.sources:HubSource"
    name: str
    """Its name on the hub."""
    subset: str = ""
    """Subset (configuration name)."""
    split: str = "train"
    """Split of the dataset."""
    revision: str = ""
    """Commit, tag or branch; a run looks up once which commit it is, and keeps to it when it goes on."""
    text_field: str = "text"
    """Field that holds a document's text."""
    retries: int = 8
    """Attempts in a row, with growing pauses, before a failing stream ends the run."""


@dataclass(kw_only=True, slots=True)
class MixturePartConfig(Configurable.Config):
    """One source of a mixture."""

    name: str
    """What its loss is called."""
    weight: float
    """Its part of the samples, as a share of the sum of all weights."""
    source: DataSourceConfig
    """Where its samples come from."""

    def check(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ConfigError(
                f"weight is {self.weight}", why="it is a share of the samples", do="write a number above 0"
            )


@dataclass(kw_only=True, slots=True)
class MixtureSourceConfig(DataSourceConfig):
    """Several sources with weights; in short: --dataloader.mixture NAME=WEIGHT:DATASET ..."""

    owner: ClassVar[str] = "monograph.train.data.mixture:MixtureSource"
    parts: tuple[MixturePartConfig, ...] = ()
    """The sources."""

    def check(self) -> None:
        names = [part.name for part in self.parts]
        if not names or len(set(names)) < len(names):
            raise ConfigError(
                f"parts are called {', '.join(names) or 'nothing'}",
                why="a mixture has one source or more, each with a name of its own",
                do="name every part once",
            )
