"""Open files of this program for writing: without following links, regular files only, and no other user's.

A link under the name of a lock or a log leads to any file of the user's, and a FIFO or a device blocks whoever opens
it. Folders above the name may be links: run folders on another disk are.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class NotOwnFile(OSError):
    """A file that this program would write to is a link, no regular file, or another user's."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(errno.EPERM, f"it is {reason}, and is not written to", str(path))


def open_own(path: Path, flags: int, mode: int = 0o644) -> int:
    """Open `path` as os.open does; raise NotOwnFile unless it is a regular file that lies in this folder itself.

    A file of another user is accepted where the folder is that user's too: file servers that map all users to one
    name them so, and such a folder holds nothing that its owner could not write anyway. Such servers may also give a
    file that was made just now (O_EXCL) to another user.
    """
    try:
        file = os.open(path, flags | _SAFE, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK) and path.is_symlink():
            raise NotOwnFile(path, f"a link to {os.readlink(path)!r}") from None
        if error.errno == errno.ENXIO:
            raise NotOwnFile(path, "a FIFO or a socket") from None
        raise
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise NotOwnFile(path, "not a regular file")
        if not flags & os.O_EXCL and status.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            raise NotOwnFile(path, f"user {status.st_uid}'s")
    except BaseException:
        os.close(file)
        raise
    return file


def create_own(path: Path, mode: int = 0o644) -> int:
    """Open a new file for writing; FileExistsError when anything has the name, a dangling link included."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


@contextmanager
def naming(file: Path | str) -> Iterator[None]:
    """Give errors of the disk the name of the file: the system names none for a write that finds no room.

    Errors without a number are shown by their text alone, which a name would replace.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = error.filename or str(file)
        raise
