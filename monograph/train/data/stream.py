"""Rows from a Hugging Face dataset that is streamed, read so that neither the network nor the library is trusted.

The library's own resume state has restarted streams without a word, so it is not used: to continue in the middle is to
read again from the start and skip. That also serves a connection that breaks. What was skipped must be what was read
before; a dataset that changed meanwhile is an error, not other data.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from monograph.errors import DataError, MonographError, describe_install
from monograph.log import get_log
from monograph.train.data.document import Document, find_text

RowFactory = Callable[[], Iterable[Mapping[str, Any]]]
"""Opens a stream of rows at its start, each time it is called."""

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
NETWORK_PACKAGES = frozenset({"aiohttp", "fsspec", "httpx", "httpcore", "huggingface_hub", "requests", "urllib3"})
PASSING_STATUS = frozenset({408, 425, 429})
"""HTTP answers below 500 that go away by themselves."""

log = get_log(__name__)


class RowStream:
    """The documents of a stream, in its own order, across broken connections."""

    def __init__(self, rows: RowFactory, *, description: str, text_field: str, retries: int) -> None:
        self.rows, self.description, self.text_field, self.retries = rows, description, text_field, retries

    def read(self, pause: Callable[[float], object] = time.sleep) -> Iterator[Document]:
        """All documents from the first one on. `pause` waits between attempts; it returns true to end the reading.
        Attempts are counted anew after every row that arrives."""
        seen = SeenRows()
        attempt = 0
        while True:
            try:
                for document in self._read_after(seen):
                    seen.add(document)
                    attempt = 0
                    yield document
                return
            except Exception as error:
                if isinstance(error, MonographError):
                    raise
                if not is_transient(error):
                    raise self._unreadable(error) from error
                attempt += 1
                if attempt > self.retries:
                    raise self._broken(error, seen.count) from error
                seconds = min(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), LONGEST_PAUSE_SECONDS)
                failure = f"{type(error).__name__}: {error}"
                log.warning("data: %s broke after row %d (%s)", self.description, seen.count, failure)
                log.warning("data: attempt %d of %d in %.0f s", attempt, self.retries, seconds)
            if pause(seconds):
                return

    def _read_after(self, seen: "SeenRows") -> Iterator[Document]:
        """The rows that were not seen yet, once those before them proved to be the same as last time."""
        expected, again = seen.copy(), SeenRows()
        for number, row in enumerate(self.rows(), start=1):
            where = f"{self.description}, row {number}"
            document = Document(where, find_text(row, self.text_field, where))
            if number > expected.count:
                yield document
                continue
            again.add(document)
            if number == expected.count and again != expected:
                raise self._changed(number)
        if again.count < expected.count:
            raise self._changed(again.count)

    def _changed(self, number: int) -> DataError:
        return DataError(
            f"{self.description} changed while it was read",
            why=f"reading it again gave other rows by row {number}",
            do="pin it with --dataloader.hf_revision, or pack it once with `monograph data pack`",
        )

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(
            f"cannot read {self.description}",
            why=f"{type(error).__name__}: {error}",
            do="check --dataloader.dataset, hf_subset, hf_split and hf_revision",
        )

    def _broken(self, error: Exception, row: int) -> DataError:
        return DataError(
            f"{self.description} broke off after row {row} and could not be continued",
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
    """The names and sizes of the files of a local dataset, which has no commit; empty where there is none."""
    files = sorted(
        (each.relative_to(path).as_posix(), each.stat().st_size) for each in path.rglob("*") if each.is_file()
    )
    return hashlib.sha256(repr(files).encode()).hexdigest() if files else ""


def open_hub(name: str, *, subset: str, split: str, revision: str) -> RowFactory:
    """Streams a dataset of the Hugging Face hub (or a local copy that the library knows how to read)."""
    check_hub_package(f"hf:{name}")
    from datasets import load_dataset

    def open_rows() -> Iterable[Mapping[str, Any]]:
        return load_dataset(name, subset or None, split=split, revision=revision or None, streaming=True)

    return open_rows
