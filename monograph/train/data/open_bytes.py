"""The bytes of a data file, unpacked when it is gzipped; no FIFO is waited for, and no archive fills the memory."""

import gzip
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast

from monograph.errors import DataError
from monograph.system.foreign_text import show

MAX_RATIO = 200
"""Unpacked bytes for each packed one; text has 3 to 20, an archive made to fill a disk up to 1000."""
ALWAYS_UNPACKED = 1 << 30
"""Bytes that are unpacked whatever the ratio."""
MAX_DOCUMENT_BYTES = 1 << 30
"""A document is in memory as a whole, as bytes, as text and as tokens."""
READ_BYTES = 1 << 24
"""Read at a time: how much there will be is not known before."""
LINE_PIECE_BYTES = 1 << 20
"""Of a line, read at a time."""
MAX_PADDING = 1 << 18
"""Zeros in a row in an archive."""
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@contextmanager
def open_bytes(path: Path) -> Iterator[tuple[IO[bytes], int | None]]:
    """The opened file; and of a gzipped one how many bytes may be read: what an honest archive of its size can hold."""
    with ExitStack() as stack:
        file = stack.enter_context(open(path, "rb", opener=_open_at_once))
        status = os.fstat(file.fileno())
        _refuse_special(path, status.st_mode)
        if not path.name.endswith(".gz"):
            yield file, None
            return
        packed = cast(IO[bytes], _BoundedPadding(file))
        unpacked = stack.enter_context(gzip.GzipFile(fileobj=packed, mode="rb"))
        yield cast(IO[bytes], unpacked), max(ALWAYS_UNPACKED, MAX_RATIO * status.st_size)


def read_whole(path: Path) -> bytearray:
    """All bytes of a file that is one document."""
    content = bytearray()
    with open_bytes(path) as (file, max_bytes):
        if max_bytes is None and os.fstat(file.fileno()).st_size > MAX_DOCUMENT_BYTES:
            raise _too_long(path)
        for data in _read_pieces(path, file, max_bytes):
            content += data
            if len(content) > MAX_DOCUMENT_BYTES:
                raise _too_long(path)
    return content


def read_parts(path: Path, separator: bytes) -> Iterator[tuple[bytes, int]]:
    """The bytes between separators, and where in the file they begin. One part is in memory at a time."""
    rest, begin, searched = bytearray(), 0, 0
    with open_bytes(path) as (file, max_bytes):
        for data in _read_pieces(path, file, max_bytes):
            rest += data
            start = 0
            while (end := rest.find(separator, max(start, searched))) >= 0:
                yield bytes(rest[start:end]), begin + start
                start = end + len(separator)
            del rest[:start]
            begin, searched = begin + start, max(len(rest) - len(separator) + 1, 0)
            if len(rest) > MAX_DOCUMENT_BYTES:
                raise _too_long(path)
    yield bytes(rest), begin


def _read_pieces(path: Path, file: IO[bytes], max_bytes: int | None) -> Iterator[bytes]:
    total = 0
    while data := file.read(READ_BYTES):
        total += len(data)
        if max_bytes is not None and total > max_bytes:
            raise too_large(path, max_bytes)
        yield data


def read_line(file: IO[bytes], max_bytes: int) -> bytes:
    """The next line, or as much of it as shows that it is none: more than `max_bytes`, or a long piece with a NUL."""
    pieces, size = [], 0
    while size <= max_bytes:
        piece = file.readline(LINE_PIECE_BYTES)
        pieces.append(piece)
        size += len(piece)
        if len(piece) < LINE_PIECE_BYTES or piece.endswith(b"\n") or b"\0" in piece:
            break
    return b"".join(pieces)


def check_regular(path: Path) -> None:
    """Refuse what is no file on a disk, before it is opened."""
    _refuse_special(path, path.stat().st_mode)


def too_large(path: Path, max_bytes: int) -> DataError:
    """The error for an archive that holds more than it may."""
    return DataError(
        f"'{show(path)}' unpacks to more than {max_bytes / (1 << 30):.3g} GiB",
        why=f"that is more than {MAX_RATIO} bytes for each one of the archive, which text does not have",
        do="take it out of the dataset; if it is what you expect, unpack it yourself",
    )


def _too_long(path: Path) -> DataError:
    return DataError(
        f"'{show(path)}' has a document of more than {MAX_DOCUMENT_BYTES / (1 << 30):.3g} GiB",
        why="a document is read whole, and a text file is one document unless it is cut",
        do="--dataloader.document_separator STRING cuts it, or write its documents as JSON lines",
    )


class _BoundedPadding:
    """A file of which a long run of zeros is not read: archives may be padded with some, which takes the gzip module
    a call for every byte."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._zeros = file, 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes; BadGzipFile after too many zeros in a row."""
        data = self._file.read(size)
        self._zeros = self._zeros + len(data) if data.count(0) == len(data) else 0
        if self._zeros > MAX_PADDING:
            raise gzip.BadGzipFile(f"it holds more than {MAX_PADDING >> 10} KiB of zeros in a row")
        return data


def _open_at_once(path: str, flags: int) -> int:
    """Opens a FIFO too, without waiting for a writer, so that it can be refused."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _refuse_special(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "not a regular file")
    raise DataError(
        f"cannot read '{show(path)}'",
        why=f"it is {kind}: data is read several times, by every rank",
        do="write its content into a file",
    )
