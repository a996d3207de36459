"""One writer at a time: a file that is locked by its open handle and names the process that holds it.

The system releases the handle when the process ends, however it ends, so a killed process holds no lock. What the
file says is for people, and for file systems whose locks do not reach other machines, do not exist, or outlive a
machine that died: there a holder on this machine counts while its process lives, one on another machine while it
refreshes the file's time.
"""

import errno
import fcntl
import os
import secrets
import threading
import time
import weakref
from enum import Enum
from pathlib import Path

from monograph.errors import ConfigError
from monograph.locks.holder import Holder, parse_holder, this_process
from monograph.log import get_log
from monograph.system.foreign_json import UnusableFile, read_file
from monograph.system.own_file import NotOwnFile, create_own, open_own

HEARTBEAT_SECONDS = 10.0
"""How often a holder refreshes its file."""
STALE_SECONDS = 60.0
"""A holder on another machine that has not refreshed its file for so long is taken to be dead."""
_POLL_SECONDS = 0.2
_ATTEMPTS = 100
_MOST_MISSED = 10
"""Attempts in a folder that is there and takes no file, as in /proc, before its error counts."""
_SECONDS_TO_WRITE = 2.0
_CONTENT_BYTES = 4096
_START = b'{"pid": '
"""Every lock begins so, of all versions."""
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_HELD: "weakref.WeakSet[LockFile]" = weakref.WeakSet()

log = get_log("lock")


class _Lock(Enum):
    """What the system says to a wish for the lock."""

    OURS = "ours"
    THEIRS = "another process's, or that of one which a file server has not given up"
    NONE = "the file system has none"


class InUse(ConfigError):
    """Another process holds the lock."""

    def __init__(self, path: Path, holder: Holder | None, seen: str = "") -> None:
        self.path, self.holder = path, holder
        self.who = f"{holder}, since {holder.since}" if holder else "another process"
        """The holder in words."""
        super().__init__(f"{path} is held by {self.who}", why=seen)


class LockFile:
    """A lock at `path`, to be taken by `acquire` and given back by `release`; `remove` deletes the file then."""

    def __init__(self, path: Path, *, remove: bool = False) -> None:
        self.path = path
        self.holder: Holder | None = None
        self._remove = remove
        self._file: int | None = None
        self._is_named = False
        """Whether the file says who holds it; a full disk keeps it empty for a while."""
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None
        self._last_beat = 0.0
        self._missed = 0

    def acquire(self) -> None:
        """Take the lock, or raise InUse; OSError when the file cannot be made."""
        for _ in range(_ATTEMPTS):
            if self._try_acquire():
                self._start_heartbeat()
                _HELD.add(self)
                return
        raise OSError(errno.EAGAIN, "other processes keep replacing the lock", str(self.path))

    def release(self, *, remove: bool = False) -> None:
        """Give the lock back. Safe to call twice, and when it was never taken."""
        if self._file is None:
            return
        self._stop.set()
        if self._heart is not None:
            self._heart.join()
        try:
            if (self._remove or remove) and self.is_held():
                self.path.unlink()
            else:
                os.ftruncate(self._file, 0)
        except OSError as error:
            log.debug("releasing %s: %s", self.path, error)
        self.forget()

    def forget(self) -> None:
        """Close the handle and nothing else: what a forked child does, which shares its parent's lock."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def is_held(self) -> bool:
        """Whether the path still leads to the file that is locked, and nobody has taken it over meanwhile."""
        if self._file is None:
            return False
        was_suspended = time.monotonic() - self._last_beat > STALE_SECONDS / 2
        if _is_at(self.path, self._file) and not was_suspended:
            return True
        found = self.read_holder()  # some network file systems change a file's number while it is open
        if found is None and not self._is_named and _is_at(self.path, self._file):
            return _lock(self._file) is _Lock.OURS  # the file has never said anything; the handle's lock has
        return found is not None and self.holder is not None and found.token == self.holder.token

    def read_holder(self) -> Holder | None:
        """Who holds the lock by what the file at the path says now."""
        try:
            return parse_holder(read_file(self.path, max_bytes=_CONTENT_BYTES))
        except (OSError, UnusableFile):
            return None

    def _try_acquire(self) -> bool:
        """One attempt; False when the file changed under it and another one is due."""
        try:
            file, is_new = _open(self.path)
        except FileNotFoundError:
            self._missed += 1
            if not self.path.parent.is_dir() or self._missed > _MOST_MISSED:
                raise
            return False
        is_ours = False
        try:
            lock = _lock(file)
            if lock is _Lock.THEIRS:
                self._check_elsewhere(file)
            content = os.pread(file, _CONTENT_BYTES, 0)
            _check_ours(self.path, file, content)
            if not is_new or lock is _Lock.THEIRS:
                self._check_free(file, content, has_lock=lock is _Lock.OURS)
            if not _is_at(self.path, file) or os.pread(file, _CONTENT_BYTES, 0) != content:
                return False
            if lock is _Lock.THEIRS or (lock is _Lock.NONE and not is_new):
                self._clear_away(content)
                return False
            self.holder, self._is_named = this_process(), False
            self._write(file, self.holder, is_needed=lock is _Lock.NONE)
            is_ours = True
        finally:
            if not is_ours:
                os.close(file)
        self._file = file
        self._remove = self._remove or lock is _Lock.NONE
        return True

    def _check_elsewhere(self, file: int) -> None:
        """Raise InUse when who has the lock is on this machine: the system knows its own processes.

        A file server may keep the lock of a machine that died, for hours or for good; only that machine could tell.
        """
        holder = _find_holder(file)
        if holder is None or holder.is_here:
            raise InUse(self.path, holder)

    def _check_free(self, file: int, content: bytes, *, has_lock: bool) -> None:
        """Raise InUse when what the file says has to be believed and its holder seems to be alive."""
        holder = parse_holder(content)
        if holder is None and has_lock:
            return
        if holder is not None and holder.is_here:
            if not has_lock and holder.is_alive:  # with a lock the system has the last word
                raise InUse(self.path, holder)
            return
        age, start, seen = _find_age(file, self.path), time.monotonic(), _find_refreshed(self.path)
        if age < STALE_SECONDS:
            log.warning("%s: waiting to see whether %s still runs", self.path, holder or "its holder")
        while (left := STALE_SECONDS - age - (time.monotonic() - start)) > 0:
            time.sleep(min(_POLL_SECONDS, left))
            now = _find_refreshed(self.path)
            if not _is_at(self.path, file) or (holder is None and now != seen):
                return  # to be looked at again
            if now != seen:
                raise InUse(self.path, holder, "it refreshed its lock just now")
        log.warning(
            "%s: %s has not refreshed it for %.0f s and is taken to be dead",
            *(self.path, holder or "its holder", age + time.monotonic() - start),
        )

    def _clear_away(self, content: bytes) -> None:
        """Where no lock can be had: move a dead holder's file away; another's that took its place is put back."""
        moved = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        try:
            os.rename(self.path, moved)
        except FileNotFoundError:
            return
        if _read(moved) != content and not os.path.lexists(self.path):
            os.rename(moved, self.path)
            return
        moved.unlink()

    def _write(self, file: int, holder: Holder, *, is_needed: bool) -> None:
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, holder.render(), 0)
            self._is_named = True
        except OSError as error:  # a full disk; the handle's lock stands without it
            if is_needed:
                raise
            log.warning("%s: cannot write who holds it: %s", self.path, error)

    def _start_heartbeat(self) -> None:
        self._stop.clear()
        self._last_beat = time.monotonic()
        self._heart = threading.Thread(target=self._beat, name="lock", daemon=True)
        self._heart.start()

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                if self._file is not None and time.monotonic() - self._last_beat < STALE_SECONDS / 2:
                    if not self._is_named and self.holder is not None:
                        self._write(self._file, self.holder, is_needed=True)
                    os.utime(self._file)
                    self._last_beat = time.monotonic()
                elif self.is_held():  # woken after a long stop, and nobody took the lock meanwhile
                    self._last_beat = time.monotonic()
            except OSError as error:
                log.debug("refreshing %s: %s", self.path, error)


def _open(path: Path) -> tuple[int, bool]:
    """The file open for writing, and whether it was made just now."""
    try:
        return open_own(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), True
    except FileExistsError:
        return open_own(path, os.O_RDWR), False


def _check_ours(path: Path, file: int, content: bytes) -> None:
    """Raise NotOwnFile for anything that is no lock: a lock is emptied and written anew.

    What a machine that lost its power, or a full disk, has left of a lock counts as one: nothing, its beginning, zeros.
    """
    rest = content.strip(b"\0")
    if os.fstat(file).st_size > _CONTENT_BYTES or (rest and not (_START.startswith(rest) or rest.startswith(_START))):
        raise NotOwnFile(path, "no lock of this program")


def _read(path: Path) -> bytes | None:
    try:
        return read_file(path, max_bytes=_CONTENT_BYTES)
    except (OSError, UnusableFile):
        return None


def _lock(file: int) -> _Lock:
    """Lock the open file, if it can be had."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return _Lock.THEIRS
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return _Lock.NONE
    return _Lock.OURS


def _find_holder(file: int) -> Holder | None:
    """Who holds a locked file; it writes that a moment after it has locked it."""
    deadline = time.monotonic() + _SECONDS_TO_WRITE
    while (holder := parse_holder(os.pread(file, _CONTENT_BYTES, 0))) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return holder


def _is_at(path: Path, file: int) -> bool:
    """Whether the path leads to the open file."""
    try:
        there = os.lstat(path)
    except OSError:
        return False
    return os.path.samestat(there, os.fstat(file))


def _find_refreshed(path: Path) -> int:
    """When the file at the path was refreshed; it is opened for this, since network file systems ask only then."""
    try:
        file = open_own(path, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return os.fstat(file).st_mtime_ns
    finally:
        os.close(file)


def _find_age(file: int, path: Path) -> float:
    """Seconds since the file was refreshed, by the clock of the file system, which may not be that of this machine."""
    probe = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with open(create_own(probe), "wb") as now:
            return max(0.0, os.fstat(now.fileno()).st_mtime - os.fstat(file).st_mtime)
    except OSError:
        return max(0.0, time.time() - os.fstat(file).st_mtime)
    finally:
        probe.unlink(missing_ok=True)


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)
