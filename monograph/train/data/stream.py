"""Rows from a Hugging Face dataset that is streamed, read so that neither the network nor the library is trusted.

The library's own resume state has restarted streams without a word, so it is not used: a dataset is read file by file,
and to continue in the middle is to read one file again from its start and skip. That also serves a connection that
breaks. What was skipped must be what was read before; a dataset that changed meanwhile is an error, not other data.
"""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from monograph.errors import DataError, MonographError, describe_install
from monograph.log import get_log
from monograph.train.data.document import Document, find_text
from monograph.train.data.folder_files import list_files

RowFactory = Callable[[], Iterable[Mapping[str, Any]]]
"""Opens the rows of a file at its start, each time it is called."""
FilesFactory = Callable[[], Sequence[RowFactory]]
"""The files of a dataset, in their order."""

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
NETWORK_PACKAGES = frozenset({"aiohttp", "fsspec", "httpx", "httpcore", "huggingface_hub", "requests", "urllib3"})
PASSING_STATUS = frozenset({408, 425, 429})
"""HTTP answers below 500 that go away by themselves."""

log = get_log(__name__)


class RowStream:
    """The documents of a stream, in its own order, across broken connections."""

    def __init__(self, files: FilesFactory, *, description: str, text_field: str, retries: int) -> None:
        self.files, self.description, self.text_field, self.retries = files, description, text_field, retries

    def count_files(self, pause: Callable[[float], object] = time.sleep) -> int:
        """How many files the dataset has now, across broken connections."""
        for attempt in itertools.count(1):
            try:
                return len(self.files())
            except Exception as error:
                if isinstance(error, MonographError):
                    raise
                if not is_transient(error):
                    raise self._unreadable(error) from error
                pause(self._find_pause(error, attempt, "its list of files"))
        raise AssertionError("the last attempt raises")

    def read(
        self,
        pause: Callable[[float], object] = time.sleep,
        *,
        start: tuple[int, int] = (0, 0),
        every: int = 1,
    ) -> Iterator[Document]:
        """All documents from the row `start` of a file on, of every file or of every so manieth. `pause` waits between
        attempts; it returns true to end the reading. Attempts are counted anew after every row that arrives."""
        first, skipped = start
        opened: Sequence[RowFactory] = ()
        for number in itertools.count(first, every):
            seen = SeenRows()
            attempt = 0
            while True:
                try:
                    opened = opened or self.files()
                    if number >= len(opened):
                        return
                    for document in self._read_after(opened, number, seen, skipped if number == first else 0):
                        seen.add(document)
                        attempt = 0
                        yield document
                    break
                except Exception as error:
                    if isinstance(error, MonographError):
                        raise
                    if not is_transient(error):
                        raise self._unreadable(error) from error
                    attempt, opened = attempt + 1, ()
                    seconds = self._find_pause(error, attempt, self._name(number, seen.count))
                if pause(seconds):
                    return

    def _find_pause(self, error: Exception, attempt: int, where: str) -> float:
        """How long to wait before the next attempt; an error when there have been enough."""
        if attempt > self.retries:
            raise self._broken(error, where) from error
        seconds = min(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), LONGEST_PAUSE_SECONDS)
        failure = f"{type(error).__name__}: {error}"
        log.warning("data: %s broke after %s (%s)", self.description, where, failure)
        log.warning("data: attempt %d of %d in %.0f s", attempt, self.retries, seconds)
        return seconds

    def _read_after(
        self, files: Sequence[RowFactory], number: int, seen: "SeenRows", skipped: int
    ) -> Iterator[Document]:
        """The rows of a file that were not seen yet, once those before them proved to be the same as last time."""
        expected, again = seen.copy(), SeenRows()
        for row_number, row in enumerate(files[number]()):
            if row_number < skipped:
                continue
            where = f"{self.description}, {self._name(number, row_number + 1)}"
            document = Document(where, find_text(row, self.text_field, where), (number, row_number))
            if again.count >= expected.count:
                yield document
                continue
            again.add(document)
            if again.count == expected.count and again != expected:
                raise self._changed(where)
        if again.count < expected.count:
            raise self._changed(self._name(number, skipped + again.count))

    def _name(self, number: int, row: int) -> str:
        return f"file {number + 1}, row {row}" if number else f"row {row}"

    def _changed(self, where: str) -> DataError:
        return DataError(
            f"{self.description} changed while it was read",
            why=f"reading it again gave other rows by {where}",
            do="pin it with --dataloader.hf_revision, or pack it once with `monograph data pack`",
        )

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(
            f"cannot read {self.description}",
            why=f"{type(error).__name__}: {error}",
            do="check --dataloader.dataset, hf_subset, hf_split and hf_revision",
        )

    def _broken(self, error: Exception, where: str) -> DataError:
        return DataError(
            f"{self.description} broke off after {where} and could not be continued",
            why=f"{self.retries} more attempts ended in {type(error).__name__}: {error}",
            do="resume the run when the network is back, raise --dataloader.stream_retries, "
            "or pack the dataset once with `monograph data pack`",
        )


class SeenRows:
    """How many rows were read, and a digest of them all."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, document: Document) -> None:
        self.count += 1
        data = document.text.encode("utf-8", errors="surrogatepass")
        self._digest.update(len(data).to_bytes(8, "little"))
        self._digest.update(data)

    def copy(self) -> "SeenRows":
        other = SeenRows()
        other.count, other._digest = self.count, self._digest.copy()
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeenRows) and (self.count, self._digest.digest()) == (
            other.count,
            other._digest.digest(),
        )

    __hash__ = None  # type: ignore[assignment]


def is_transient(error: Exception) -> bool:
    """Whether trying again may help: the network's faults do pass, a wrong name does not."""
    status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "status", None)
    if isinstance(status, int):
        return status >= 500 or status in PASSING_STATUS
    if isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError | IsADirectoryError):
        return False
    if isinstance(error, OSError | EOFError):  # with ConnectionError and TimeoutError
        return True
    return type(error).__module__.partition(".")[0] in NETWORK_PACKAGES


def check_hub_package(dataset: str) -> None:
    """Refuse a dataset of the hub where the package that reads it is missing."""
    if find_spec("datasets") is None:
        raise DataError(
            f"'{dataset}' needs the datasets package",
            why="it is an optional extra",
            do=describe_install("hf", "datasets"),
        )


def describe_copy(path: Path) -> str:
    """The names and sizes of the files of a local dataset, which has no commit; empty where there is none. Hidden files
    are what downloads and file systems note for themselves."""
    if not path.is_dir():
        return ""
    files = [(each.relative_to(path).as_posix(), each.stat().st_size) for each in list_files(path).files]
    return hashlib.sha256(repr(sorted(files)).encode("utf-8", "surrogatepass")).hexdigest() if files else ""


def open_hub(name: str, *, subset: str, split: str, revision: str) -> FilesFactory:
    """Streams a dataset of the Hugging Face hub (or a local copy that the library knows how to read)."""
    check_hub_package(f"hf:{name}")
    from datasets import load_dataset

    def open_files() -> Sequence[RowFactory]:
        dataset = load_dataset(name, subset or None, split=split, revision=revision or None, streaming=True)
        count = dataset.num_shards
        return [partial(dataset.shard, num_shards=count, index=index) for index in range(count)]

    return open_files
