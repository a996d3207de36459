"""Local files as documents: text, JSON lines (both also gzipped), parquet, and folders of these."""

import codecs
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from monograph.errors import DataError, did_you_mean
from monograph.log import get_log
from monograph.plurals import counted
from monograph.system.foreign_text import show
from monograph.train.data.config import LINES_ENDINGS, PARQUET_ENDING, TEXT_ENDINGS
from monograph.train.data.document import Document, DocumentSource, find_text, missing_field
from monograph.train.data.folder_files import FolderFiles, list_files
from monograph.train.data.open_bytes import check_regular, open_bytes, read_line, read_parts, read_whole, too_large

GZIPPED = tuple(f"{ending}.gz" for ending in (".txt", *LINES_ENDINGS))
KNOWN_ENDINGS = (*TEXT_ENDINGS, *LINES_ENDINGS, *GZIPPED, PARQUET_ENDING)
PARQUET_ROWS = 1024
"""Rows taken from a parquet file at a time."""
MAX_LINE_BYTES = 1 << 30
"""Bytes of one JSON line; a file of more without a line break is no JSON lines."""
GUESSED_BYTES = 4096
"""Bytes by which an encoding is guessed, for the message alone."""
SHOWN_KINDS = 8
"""Endings and names that a message lists; the others are counted."""

log = get_log(__name__)


def check_exists(path: Path) -> None:
    """Refuse a path that leads nowhere."""
    try:
        path.stat()
    except (OSError, ValueError) as error:
        siblings = os.listdir(path.parent) if os.access(path.parent, os.R_OK) and path.parent.is_dir() else []
        if path.is_symlink():
            raise DataError(
                f"the dataset '{show(path)}' is a link that leads nowhere",
                why=f"it leads to {show(os.readlink(path))}, which does not exist",
                do="repair the link, or name the file itself",
            ) from None
        near = did_you_mean(path.name, [show(name) for name in siblings])
        many = "; several are separated by spaces" if "," in str(path) else ""
        reason = getattr(error, "strerror", None) or str(error)
        what = "does not exist" if isinstance(error, FileNotFoundError | NotADirectoryError) else "cannot be read"
        raise DataError(
            f"the dataset '{show(path)}' {what}",
            why=f"looked for a file or folder at {show(path.absolute())}: {reason}",
            do=f"name 'builtin', an existing file or folder, or 'hf:NAME'{'; ' + near if 'mean' in near else ''}{many}",
        ) from None


def open_files(path: Path, *, text_field: str, separator: str = "") -> DocumentSource:
    """The documents of a file, or of every readable file in a folder, sorted by relative path."""
    check_exists(path)
    files = find_files(path) if path.is_dir() else [path]
    for file in files:
        check_ending(file)

    def read() -> Iterator[Document]:
        for file in files:
            yield from read_file(file, text_field, separator)

    return DocumentSource(f"{show(path)} ({counted(len(files), 'file')})" if path.is_dir() else show(path), read)


def find_files(folder: Path) -> list[Path]:
    """Every readable file below a folder, without hidden ones, in a stable order. Says what it leaves out."""
    found = list_files(folder)
    files = read_once([path for path in found.files if path.name.endswith(KNOWN_ENDINGS)], found)
    for path in found.special:
        if path.name.endswith(KNOWN_ENDINGS):
            check_regular(path)
    left_out = describe_left_out(folder, found)
    if not files:
        raise DataError(
            f"the folder '{show(folder)}' has no files to read",
            why=f"it has {left_out}" if left_out else "it is empty",
            do=f"give it files that end in {', '.join(KNOWN_ENDINGS)}",
        )
    if left_out:
        log.info("data: %s: reading %d files and leaving out %s", show(folder), len(files), left_out)
    return files


def read_once(files: list[Path], found: FolderFiles) -> list[Path]:
    """Files without the links to others of them, which are noted; a file that only links lead to is read once."""
    links = [path for path in files if path in found.linked]
    if not links:
        return files
    seen = {os.path.realpath(path) for path in files if path not in found.linked}
    repeated = set()
    for path in links:
        real = os.path.realpath(path)
        if real in seen:
            repeated.add(path)
        seen.add(real)
    found.repeated += sorted(repeated)
    return [path for path in files if path not in repeated]


def describe_left_out(folder: Path, found: FolderFiles) -> str:
    """What of a folder is not read, counted and named; empty when that is nothing."""
    unread = (path for path in (*found.files, *found.special) if not path.name.endswith(KNOWN_ENDINGS))
    kinds = sorted(Counter(path.suffix or "no ending" for path in unread).items(), key=lambda kind: (-kind[1], kind[0]))
    parts = [f"{count} x {show(ending)}" for ending, count in kinds[:SHOWN_KINDS]]
    if rest := sum(count for _, count in kinds[SHOWN_KINDS:]):
        parts.append(f"{rest} with other endings")
    for what, paths in (("hidden", found.hidden), ("already read under another name", found.repeated)):
        if paths:
            names = [show(path.relative_to(folder)) for path in paths[:SHOWN_KINDS]]
            parts.append(f"{len(paths)} {what} ({', '.join(names)}{', ...' if len(paths) > SHOWN_KINDS else ''})")
    return ", ".join(parts)


def check_ending(path: Path) -> None:
    """Refuse a file whose ending does not say how to read it."""
    if not path.name.endswith(KNOWN_ENDINGS):
        one_object_per_line = path.name.endswith((".json", ".json.gz"))
        raise DataError(
            f"cannot read '{show(path)}'",
            why=f"'{show(path.suffix)}' is none of {', '.join(KNOWN_ENDINGS)}",
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
    with named_failures(path):
        yield from reader


@contextmanager
def named_failures(path: Path) -> Iterator[None]:
    """Raise DataError with the name of the file for a disk or an archive that cannot be read."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"cannot read '{show(path)}'",
            why=f"{type(error).__name__}: {show(error)}",
            do="repair it, or take it out of the dataset",
        ) from error


def read_text(path: Path, separator: str) -> Iterator[Document]:
    """A text file as one document, or as the parts between separators."""
    if not separator:
        yield Document(show(path), decode(read_whole(path), show(path)))
        return
    parts = read_parts(path, separator.encode("utf-8", "surrogatepass"))
    for number, (part, begin) in enumerate(parts, start=1):
        yield Document(f"{show(path)}, part {number}", decode(part, show(path), begin=begin))


def read_lines(path: Path, text_field: str) -> Iterator[Document]:
    """JSON lines: one object per line; blank lines are nothing."""
    name, total = show(path), 0
    with open_bytes(path) as (file, max_bytes):
        for number, line in enumerate(iter(partial(read_line, file, MAX_LINE_BYTES), b""), start=1):
            where = f"{name}:{number}"
            total += len(line)
            if max_bytes is not None and total > max_bytes:
                raise too_large(path, max_bytes)
            if len(line) > MAX_LINE_BYTES:
                raise DataError(
                    f"{where}: this line is longer than {MAX_LINE_BYTES >> 20} MiB",
                    why="a JSON line is one document, which is read whole",
                    do="write one JSON object per line",
                )
            if not line.strip():
                continue
            try:
                row = parse_row(decode(line, where), text_field)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{where}: this line is not JSON",
                    why=str(error),
                    do="write one JSON object per line; a file cut off in the middle must be copied again",
                ) from None
            yield Document(where, find_text(row, text_field, where))


def parse_row(line: str, text_field: str) -> Any:
    """The value of a JSON line; ValueError when an object in it has the text field twice, of which one would be lost.

    Others may come twice, as some programs write them.
    """
    if line.count(f'"{text_field}"') < 2:
        return json.loads(line)

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if sum(name == text_field for name, _ in pairs) > 1:
            raise ValueError(f"an object has the field {text_field!r} twice")
        return dict(pairs)

    return json.loads(line, object_pairs_hook=read_object)


def read_parquet(path: Path, text_field: str) -> Iterator[Document]:
    """The text column of a parquet file, a few rows at a time."""
    check_regular(path)
    arrow, open_parquet = find_parquet(path)
    name, number = show(path), 0
    try:
        with open_parquet(path) as file:
            if text_field not in file.schema_arrow.names:
                texts = [each.name for each in file.schema_arrow if str(each.type) in ("string", "large_string")]
                raise missing_field(text_field, list(file.schema_arrow.names), name, texts=texts)
            for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=[text_field]):
                for text in batch.column(0):
                    number += 1
                    where = f"{name}, row {number}"
                    yield Document(where, find_text({text_field: text.as_py()}, text_field, where))
    except UnicodeDecodeError as error:
        raise not_utf8(f"{name}, row {number}", error) from None
    except arrow.ArrowException as error:
        raise DataError(
            f"'{name}' is not a readable parquet file", why=show(error), do="copy or write the file again"
        ) from error


def find_parquet(path: Path) -> tuple[Any, Callable[[Path], Any]]:
    """pyarrow, which only parquet files need."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise DataError(
            f"'{show(path)}' is a parquet file, which needs pyarrow", why=str(error), do="pip install pyarrow"
        ) from None
    return pyarrow, ParquetFile


def decode(data: bytes | bytearray, where: str, *, begin: int = 0) -> str:
    """Text from UTF-8; anything else is refused rather than guessed. `begin` bytes of the file come before it."""
    try:
        return data.decode("utf-8" if begin else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(where, error, begin=begin) from None


def decode_beginning(data: bytes, where: str) -> None:
    """Refuse the first bytes of a file that are not UTF-8; a character that is cut off at their end counts as whole."""
    try:
        codecs.getincrementaldecoder("utf-8-sig")().decode(data)
    except UnicodeDecodeError as error:
        raise not_utf8(where, error) from None


def not_utf8(where: str, error: UnicodeDecodeError, *, begin: int = 0) -> DataError:
    """The error for bytes in another encoding, or for no text at all."""
    data = bytes(error.object[:GUESSED_BYTES])
    why = f"byte {begin + error.start} is 0x{error.object[error.start]:02x}: {error.reason}"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return DataError(
            f"{where}: this is not UTF-8 text but UTF-16", why=why, do="convert it: iconv -f UTF-16 -t UTF-8 FILE"
        )
    if b"\0" in data:
        return DataError(
            f"{where}: this is a binary file, not UTF-8 text",
            why=f"byte {begin + data.index(0)} is 0x00",
            do="take it out of the dataset, or name files that hold text",
        )
    return DataError(
        f"{where}: this is not UTF-8 text", why=why, do="convert it, for example with: iconv -f LATIN1 -t UTF-8 FILE"
    )
