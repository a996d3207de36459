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
READ_BYTES = 1 << 24
"""Read at a time: how much there will be is not known before."""
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
        unpacked = stack.enter_context(gzip.GzipFile(fileobj=file, mode="rb"))
        yield cast(IO[bytes], unpacked), max(ALWAYS_UNPACKED, MAX_RATIO * status.st_size)


def read_whole(path: Path) -> bytearray:
    """All bytes of a file, if the memory can hold them."""
    content = bytearray()
    with open_bytes(path) as (file, max_bytes):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        allowed = memory if max_bytes is None else max_bytes
        if max_bytes is None and os.fstat(file.fileno()).st_size > allowed:
            raise too_large(path, allowed)
        while data := file.read(READ_BYTES):
            content += data
            if len(content) > allowed:
                raise too_large(path, allowed)
    return content


def check_regular(path: Path) -> None:
    """Refuse what is no file on a disk, before it is opened."""
    _refuse_special(path, path.stat().st_mode)


def too_large(path: Path, max_bytes: int) -> DataError:
    """The error for more bytes than may be read."""
    size = f"{max_bytes / (1 << 30):.3g} GiB"
    if path.name.endswith(".gz"):
        return DataError(
            f"'{show(path)}' unpacks to more than {size}",
            why=f"that is more than {MAX_RATIO} bytes for each one of the archive, which text does not have",
            do="take it out of the dataset; if it is what you expect, unpack it yourself",
        )
    return DataError(
        f"'{show(path)}' is larger than the memory of this machine, {size}",
        why="a text file is read whole",
        do="write its documents as JSON lines, or cut it into several files",
    )


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
