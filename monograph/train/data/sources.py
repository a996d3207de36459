"""The built-in sources: the standard library, files, packed token shards, and datasets of the Hugging Face hub."""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from monograph.errors import DataError
from monograph.log import get_log
from monograph.system.foreign_text import show
from monograph.train.data.builtin import open_builtin
from monograph.train.data.corpus import TokenCorpus
from monograph.train.data.document import Document, DocumentSource
from monograph.train.data.file_checks import FileChecker, check_here
from monograph.train.data.files import open_files
from monograph.train.data.open_shards import open_shards
from monograph.train.data.shard_index import list_files
from monograph.train.data.source import SamplePlan
from monograph.train.data.source_configs import (
    BuiltinSourceConfig,
    FileSourceConfig,
    HubSourceConfig,
    ShardSourceConfig,
)
from monograph.train.data.stream import RowFactory, RowStream, describe_copy, open_hub
from monograph.train.data.stream_samples import DocumentStream
from monograph.train.data.stream_source import StreamSource
from monograph.train.data.text_source import TextSource
from monograph.train.data.tokenizer import Tokenizer

SHOWN_NAMES = 8
log = get_log(__name__)


class BuiltinSource(TextSource):
    """The source files of Python's standard library."""

    Config = BuiltinSourceConfig

    @functools.cached_property
    def files(self) -> DocumentSource:
        """The files, looked up when they are needed."""
        return open_builtin()

    @property
    def description(self) -> str:
        """Which standard library."""
        return self.files.description

    def read(self) -> Iterator[Document]:
        """Each file is a document."""
        return self.files.read()


class FileSource(TextSource):
    """Local files."""

    Config = FileSourceConfig

    @functools.cached_property
    def files(self) -> DocumentSource:
        """The files, looked up when they are needed."""
        config = self.config
        return open_files(Path(config.path), text_field=config.text_field, separator=config.document_separator)

    @property
    def description(self) -> str:
        """Which files."""
        return self.files.description

    def read(self) -> Iterator[Document]:
        """The documents of every file, in order."""
        return self.files.read()


class ShardSource(TextSource):
    """Token shards: tokenized already, so that they are mapped instead of read."""

    Config = ShardSourceConfig
    _check_files: FileChecker = staticmethod(check_here)

    @property
    def description(self) -> str:
        """Which folder."""
        return self.config.folder

    def read(self) -> Iterator[Document]:
        """Packed tokens have no text."""
        raise DataError(
            f"'{self.config.folder}' is packed already", why="tokens cannot be tokenized", do="give the original files"
        )

    def find_corpora(self, plan: SamplePlan) -> tuple[TokenCorpus, ...]:
        """The mapped shards; whoever the plan names checks the files."""
        self._check_files = plan.check_files
        return super().find_corpora(plan)

    def load_corpus(self, tokenizer: Tokenizer) -> TokenCorpus:
        """Map the shards, once they proved to be whole."""
        folder, verify = Path(self.config.folder), self.config.verify
        corpus = open_shards(folder, tokenizer, verify=verify, check_files=self._check_files)
        if foreign := find_unlisted(folder):
            shown = f"{', '.join(map(show, foreign[:SHOWN_NAMES]))}{', ...' if len(foreign) > SHOWN_NAMES else ''}"
            log.info("data: %s: leaving out %d that index.json does not list (%s)", show(folder), len(foreign), shown)
        return corpus


def find_unlisted(folder: Path) -> list[str]:
    """Names in a folder of token shards that do not belong to them."""
    listed = list_files(folder)
    return sorted(path.name for path in folder.iterdir() if path.name not in listed)


class HubSource(StreamSource):
    """Rows of a dataset of the Hugging Face hub, across broken connections."""

    Config = HubSourceConfig

    def __init__(self, config: HubSourceConfig, *, rows: RowFactory | None = None) -> None:
        """`rows` takes the place of the hub: a dataset of one file."""
        super().__init__(config)
        one_file = None if rows is None else (lambda: [rows])
        files = one_file or open_hub(config.name, subset=config.subset, split=config.split, revision=config.revision)
        self.stream = RowStream(
            files, description=self.description, text_field=config.text_field, retries=config.retries
        )

    @property
    def description(self) -> str:
        """Name, subset and split."""
        return f"hf:{self.config.name} {self.config.subset}".strip() + f" [{self.config.split}]"

    def identity(self) -> tuple[str, ...]:
        """What is read of which revision, or of which local copy; retries and the like do not matter."""
        version = self.config.revision or describe_copy(Path(self.config.name))
        return (self.description, version, self.config.text_field)

    def read(self, pause: Callable[[float], object] = time.sleep) -> Iterator[Document]:
        """One document for each row."""
        return self.stream.read(pause)

    def read_from(self, place: tuple[int, ...], pause: Callable[[float], object] = time.sleep) -> Iterator[Document]:
        """Earlier files are not opened."""
        return self.stream.read(pause, start=(place[0], place[1]) if place else (0, 0))

    def count_files(self) -> int:
        """The files of the dataset as it is now."""
        return self.stream.count_files()

    def take_lane(self, lane: int, lanes: int) -> DocumentStream:
        """Every `lanes`-th file."""
        return FileLane(self.stream, lane, lanes)


@dataclass(frozen=True)
class FileLane:
    """Every so manieth file of a dataset that is streamed."""

    stream: RowStream
    lane: int
    lanes: int

    @property
    def description(self) -> str:
        """The dataset, and which of its files."""
        every = f", every {self.lanes}. file from {self.lane + 1} on" if self.lanes > 1 else ""
        return f"{self.stream.description}{every}"

    def read(self, pause: Callable[[float], object] = time.sleep) -> Iterator[Document]:
        """The documents of these files."""
        return self.read_from((), pause)

    def read_from(self, place: tuple[int, ...], pause: Callable[[float], object] = time.sleep) -> Iterator[Document]:
        """The documents from a place on; earlier files are not opened."""
        start = (place[0], place[1]) if place else (self.lane, 0)
        return self.stream.read(pause, start=start, every=self.lanes)
