"""Local files as documents: text, JSON lines (both also gzipped), parquet, and folders of these."""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from monograph.errors import DataError, did_you_mean
from monograph.log import get_log
from monograph.train.data.config import LINES_ENDINGS, PARQUET_ENDING, TEXT_ENDINGS
from monograph.train.data.document import Document, DocumentSource, find_text, missing_field

GZIPPED = tuple(f"{ending}.gz" for ending in (".txt", *LINES_ENDINGS))
KNOWN_ENDINGS = (*TEXT_ENDINGS, *LINES_ENDINGS, *GZIPPED, PARQUET_ENDING)
PARQUET_ROWS = 1024
"""Rows taken from a parquet file at a time."""

log = get_log(__name__)


def check_exists(path: Path) -> None:
    """Refuse a path that leads nowhere."""
    if not path.exists():
        near = did_you_mean(path.name, [each.name for each in path.parent.iterdir()]) if path.parent.is_dir() else ""
        many = "; several are separated by spaces" if "," in str(path) else ""
        raise DataError(
            f"the dataset '{path}' does not exist",
            why=f"looked for a file or folder at {path.absolute()}",
            do=f"name 'builtin', an existing file or folder, or 'hf:NAME'{'; ' + near if 'mean' in near else ''}{many}",
        )


def open_files(path: Path, *, text_field: str, separator: str = "") -> DocumentSource:
    """The documents of a file, or of every readable file in a folder, sorted by relative path."""
    check_exists(path)
    files = find_files(path) if path.is_dir() else [path]
    for file in files:
        check_ending(file)

    def read() -> Iterator[Document]:
        for file in files:
            yield from read_file(file, text_field, separator)

    return DocumentSource(f"{path} ({len(files)} files)" if path.is_dir() else str(path), read)


def find_files(folder: Path) -> list[Path]:
    """Every readable file below a folder, without hidden ones, in a stable order. Says what it leaves out."""
    everything = [
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    files = sorted(
        (path for path in everything if path.name.endswith(KNOWN_ENDINGS)),
        key=lambda path: path.relative_to(folder).as_posix(),
    )
    others = Counter(path.suffix or "no ending" for path in everything if not path.name.endswith(KNOWN_ENDINGS))
    named = ", ".join(f"{count} x {ending}" for ending, count in sorted(others.items()))
    if not files:
        raise DataError(
            f"the folder '{folder}' has no files to read",
            why=f"it has {named}" if named else "it is empty",
            do=f"give it files that end in {', '.join(KNOWN_ENDINGS)}",
        )
    if others:
        log.info("data: %s: reading %d files and leaving out %s", folder, len(files), named)
    return files


def check_ending(path: Path) -> None:
    """Refuse a file whose ending does not say how to read it."""
    if not path.name.endswith(KNOWN_ENDINGS):
        one_object_per_line = path.name.endswith((".json", ".json.gz"))
        raise DataError(
            f"cannot read '{path}'",
            why=f"'{path.suffix}' is none of {', '.join(KNOWN_ENDINGS)}",
            do="rename it to .jsonl if every line is one JSON object"
            if one_object_per_line
            else "convert or rename it",
        )


def read_file(path: Path, text_field: str, separator: str) -> Iterator[Document]:
    """The documents of one file; whatever goes wrong names the file."""
    if path.name.endswith(PARQUET_ENDING):
        reader = read_parquet(path, text_field)
    elif path.name.removesuffix(".gz").endswith(LINES_ENDINGS):
        reader = read_lines(path, text_field)
    else:
        reader = read_text(path, separator)
    try:
        yield from reader
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"cannot read '{path}'",
            why=f"{type(error).__name__}: {error}",
            do="repair it, or take it out of the dataset",
        ) from error


def open_bytes(path: Path) -> Any:
    """The file's bytes, unpacked when it is gzipped."""
    return gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb")


def read_text(path: Path, separator: str) -> Iterator[Document]:
    """A text file as one document, or as the parts between separators."""
    with open_bytes(path) as file:
        text = decode(file.read(), str(path))
    if not separator:
        yield Document(str(path), text)
        return
    for number, part in enumerate(text.split(separator), start=1):
        yield Document(f"{path}, part {number}", part)


def read_lines(path: Path, text_field: str) -> Iterator[Document]:
    """JSON lines: one object per line; blank lines are nothing."""
    with open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                row = json.loads(decode(line, where))
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{where}: this line is not JSON",
                    why=str(error),
                    do="write one JSON object per line; a file cut off in the middle must be copied again",
                ) from None
            yield Document(where, find_text(row, text_field, where))


def read_parquet(path: Path, text_field: str) -> Iterator[Document]:
    """The text column of a parquet file, a few rows at a time."""
    arrow, open_parquet = find_parquet(path)
    try:
        with open_parquet(path) as file:
            if text_field not in file.schema_arrow.names:
                raise missing_field(text_field, list(file.schema_arrow.names), str(path))
            number = 0
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=[text_field]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    where = f"{path}, row {number}"
                    yield Document(where, find_text({text_field: text}, text_field, where))
    except arrow.ArrowException as error:
        raise DataError(
            f"'{path}' is not a readable parquet file", why=str(error), do="copy or write the file again"
        ) from error


def find_parquet(path: Path) -> tuple[Any, Callable[[Path], Any]]:
    """pyarrow, which only parquet files need."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise DataError(
            f"'{path}' is a parquet file, which needs pyarrow", why=str(error), do="pip install pyarrow"
        ) from None
    return pyarrow, ParquetFile


def decode(data: bytes, where: str) -> str:
    """Text from UTF-8; anything else is refused rather than guessed."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: this is not UTF-8 text",
            why=f"byte {error.start} is 0x{data[error.start]:02x}: {error.reason}",
            do="convert it, for example with: iconv -f LATIN1 -t UTF-8",
        ) from None
