"""A folder that belongs to one writing process, and outputs that appear in one piece under one name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monograph.errors import ConfigError, MonographError
from monograph.locks.lock_file import InUse, LockFile

LOCK_NAME = ".lock"


class FolderMoved(MonographError):
    """The folder a process writes to was moved, deleted or taken over; nothing may be written to its path any more."""


class FolderLock:
    """The lock of a folder, inside it. It holds on to the folder itself, not to the folder's name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = LockFile(folder / LOCK_NAME)
        self._handle: int | None = None

    def acquire(self) -> None:
        """Lock the folder, which must exist; InUse when another process has locked it."""
        self._lock.acquire()
        try:
            self._handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            self._lock.release()
            raise

    def check(self) -> None:
        """Raise FolderMoved when the folder's path no longer leads to the folder that was locked."""
        if self._handle is None or self._lock.is_held():
            return
        if not self._is_there():
            raise FolderMoved(
                f"{self.folder} was moved or deleted while this process was writing to it",
                why=f"its files are {self._find_now()}",
                do="leave the folder of a running process alone; continue from its last checkpoint",
            )
        self._lock_again()

    def _lock_again(self) -> None:
        """The lock file alone was removed or replaced: make another, unless the folder is somebody else's by now."""
        fresh = LockFile(self._lock.path)
        try:
            fresh.acquire()
        except InUse as taken:
            if taken.holder is not None and taken.holder == self._lock.holder:
                return
            raise FolderMoved(
                f"{self.folder} was taken over while this process was stopped",
                why=f"{taken.what}; {taken.why}" if taken.why else taken.what,
                do="continue from its last checkpoint in another folder",
            ) from None
        except OSError:  # the disk's trouble, which whoever writes there will report
            return
        self._lock.release()
        self._lock = fresh

    def read_owner(self) -> str:
        """Who holds the folder, as every process that sees the folder reads it; empty when nobody does."""
        holder = self._lock.read_holder()
        return f"{holder} ({holder.token})" if holder else ""

    def release(self, *, remove: bool = False) -> None:
        """Let other processes have the folder; with `remove`, delete the lock file as well. Safe to call twice."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)
        self._lock.release(remove=remove)

    def _is_there(self) -> bool:
        """Whether the path leads to the locked folder; a disk that does not answer is no reason to doubt it."""
        if self._handle is None:
            return False
        try:
            return os.path.samestat(os.stat(self.folder), os.fstat(self._handle))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def _find_now(self) -> str:
        try:
            path = os.readlink(f"/proc/self/fd/{self._handle}")
        except OSError:
            return "somewhere else"
        return "deleted" if path.endswith(" (deleted)") else f"now in {path}"


@contextmanager
def locked_output(target: Path) -> Iterator[None]:
    """Keep other processes from writing the same output (a file or a folder) meanwhile; the lock lies beside it."""
    lock = LockFile(target.parent / f".{target.name}.lock", remove=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except InUse as busy:
        raise ConfigError(
            f"{target} is being written by {busy.who}",
            why="two writers would mix their files",
            do="wait until it has finished, or choose another name",
        ) from None
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        raise ConfigError(f"{target} cannot be written", why=why, do="choose another name") from None
    try:
        yield
    finally:
        lock.release()
