"""The user's cache folder: files that can be made anew, and that nobody else can read or write."""

import errno
import os
import re
import stat
import time
from contextlib import suppress
from pathlib import Path

from monograph.system.own_file import NotOwnFile

_LEFT_OVER_SECONDS = 3600.0
"""Age at which a file that was never given its name belongs to a process that has died."""


def find_cache_folder(kind: str) -> Path:
    """`$XDG_CACHE_HOME/monograph/KIND`, or that of ~/.cache; OSError where no home folder is known.

    A relative path in the variable is ignored, as the specification of the variable says.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(home):
        return Path(home) / "monograph" / kind
    try:
        return Path.home() / ".cache" / "monograph" / kind
    except RuntimeError as error:
        raise OSError(errno.ENOENT, str(error)) from None


def make_private_folder(folder: Path) -> None:
    """Make a folder that nobody else can look into; NotOwnFile for one that is a link, another user's, or open."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotOwnFile(folder, "no folder")
    if status.st_uid != os.geteuid():
        raise NotOwnFile(folder, f"user {status.st_uid}'s")
    if mode := stat.S_IMODE(status.st_mode) & 0o077:
        raise NotOwnFile(folder, f"open to other users (mode {stat.S_IMODE(status.st_mode):04o}, without {mode:03o})")


def remove_oldest(folder: Path, names: re.Pattern[str], *, max_bytes: int) -> None:
    """Delete the entries that were not used for longest, until the others take `max_bytes`; other files stay.

    Files that were being written under another name (`.NAME...`) when their process died are deleted, too.
    """
    entries: list[tuple[float, int, Path]] = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process deletes, too
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                continue
            if names.fullmatch(path.name):
                entries.append((status.st_mtime, status.st_size, path))
            elif is_left_over(path.name, names) and status.st_mtime < time.time() - _LEFT_OVER_SECONDS:
                path.unlink()
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= max_bytes:
            return
        path.unlink(missing_ok=True)
        total -= size


def is_left_over(name: str, names: re.Pattern[str]) -> bool:
    """Whether a file is an entry under the name that it has until it is written: `.NAME.8f3a90c1` (`write_whole`)."""
    prepared, _, token = name.removeprefix(".").rpartition(".")
    return name.startswith(".") and bool(names.fullmatch(prepared)) and bool(re.fullmatch("[0-9a-f]{8}", token))
