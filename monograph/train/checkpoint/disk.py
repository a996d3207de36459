"""Every change a checkpoint makes on disk goes through here: one method per system call, so each can be made to fail.

Nothing else in this package creates, writes, renames or removes a file. The promise "a checkpoint is whole or does not
exist" rests on the order of these calls, and the tests stop the program at every single one of them.
"""

import errno
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from monograph.system.foreign_json import open_regular
from monograph.system.own_tree import is_plain_folder

WRITE_BYTES = 64 << 20
"""Largest single write: far below the system's limit of 2 GiB, large enough to keep any disk busy."""
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
_FOLDER_ITSELF = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Disk:
    """The real disk. Tests derive from it to crash, to run full, or to lose what was not synced."""

    def make_folder(self, path: Path) -> None:
        os.mkdir(path)

    def create(self, path: Path) -> int:
        """Open a new file for writing; an existing one is an error, since nothing is ever overwritten."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def write(self, file: int, data: memoryview) -> int:
        """Write some of `data` and say how much, as the system call does."""
        return os.write(file, data)

    def sync(self, file: int) -> None:
        os.fsync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable, where the file system can."""
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise
        finally:
            os.close(folder)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove_file(self, path: Path | str, parent: int | None = None) -> None:
        """Remove a file or a link; with `parent`, the one of that name in an open folder."""
        os.unlink(path, dir_fd=parent)

    def remove_folder(self, path: Path | str, parent: int | None = None) -> None:
        os.rmdir(path, dir_fd=parent)


class DurableFile:
    """A new file that knows its own size and sha256 while it is written; durable once `finish` has returned."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.size = 0
        self._disk, self._path = disk, path
        self._sha256 = hashlib.sha256()
        self._file = disk.create(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._disk.close(self._file)

    def write(self, data: memoryview | bytes) -> None:
        rest = memoryview(data).cast("B")
        self.size += len(rest)
        while len(rest):
            piece = rest[:WRITE_BYTES]
            with self._named():
                written = self._disk.write(self._file, piece)
            self._sha256.update(piece[:written])
            rest = rest[written:]

    def finish(self) -> str:
        """Make everything written durable; returns its sha256."""
        with self._named():
            self._disk.sync(self._file)
        return self._sha256.hexdigest()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Put the file into errors: the system knows its number alone when a disk is full."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or str(self._path)
            raise


def write_file(disk: Disk, path: Path, data: bytes) -> str:
    """Write a small file durably; returns its sha256."""
    with DurableFile(disk, path) as file:
        file.write(data)
        return file.finish()


def hash_file(path: Path, *, size: int | None = None) -> tuple[int, str]:
    """Size and sha256 of what is stored now, read in pieces and, where the system can, past its cache.

    A file that does not have `size` bytes is not read; its hash is then empty. UnusableFile for what is no
    regular file: to open a FIFO would wait for somebody to write into it.
    """
    with open_regular(path) as file:
        found = os.fstat(file.fileno()).st_size  # after opening: what a mount remembers of a size may be old before
        if size not in (None, found):
            return found, ""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def remove_tree(disk: Disk, path: Path) -> None:
    """Remove a folder and what is in it. A link is removed itself, wherever it stands, and never entered.

    Folders are held open without following links, so that one which is replaced by a link meanwhile is not left.
    """
    if not is_plain_folder(path):
        disk.remove_file(path)
        return
    folder = os.open(path, _FOLDER_ITSELF)
    try:
        _remove_content(disk, folder)
    finally:
        os.close(folder)
    disk.remove_folder(path)


def _remove_content(disk: Disk, folder: int) -> None:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if not entry.is_dir(follow_symlinks=False):
            disk.remove_file(entry.name, folder)
            continue
        inner = os.open(entry.name, _FOLDER_ITSELF, dir_fd=folder)
        try:
            _remove_content(disk, inner)
        finally:
            os.close(inner)
        disk.remove_folder(entry.name, folder)


@contextmanager
def new_folder(disk: Disk, target: Path) -> Iterator[Path]:
    """A folder to write into; it appears as `target` when the block ends well, and not at all when it fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    prepared = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
    disk.make_folder(prepared)
    try:
        yield prepared
    except (Exception, KeyboardInterrupt):
        remove_tree(disk, prepared)
        raise
    disk.sync_folder(prepared)
    disk.rename(prepared, target)
    disk.sync_folder(target.parent)
