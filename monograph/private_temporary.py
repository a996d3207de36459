"""Temporary folders for what is run or unpickled: in places where no other user can put another folder in their stead.

A new folder of mode 0700 is not enough: in a folder that others can write to, and that has no sticky bit as /tmp has,
they rename it and make one of the same name.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from monograph.errors import ConfigError
from monograph.permissions import find_exposed_parents
from monograph.system.foreign_text import show
from monograph.system.own_tree import is_plain_folder, remove_made

_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
"""Where TMPDIR cannot be used, in this order."""


def make_private_temporary(prefix: str, *, locks: bool = False) -> Path:
    """Make a folder that only this user can enter, write to and rename; in TMPDIR where that is a place for it.

    With `locks`, files in it can be locked, which Lustre and some file servers refuse.
    """
    chosen, reasons = tempfile.gettempdir(), []
    for place in _list_places():
        exposed = find_exposed_parents(place / prefix)
        try:
            if not exposed:
                folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
                problem = _try_lock(folder) if locks else ""
                if not problem:
                    return folder
                remove_made(folder)
                exposed = [f"{place}: its file system locks no files ({problem})"]
        except OSError as error:
            exposed = [f"{place}: {error.strerror}"]
        reasons += exposed[:1]
    what = "other users cannot replace" + (" and in which files can be locked" if locks else "")
    raise ConfigError(
        f"no temporary folder can be made that {what}; TMPDIR is {show(chosen)}",
        why="; ".join(map(show, reasons)),
        do="set TMPDIR to a folder of yours (mode 0700)" + (" on a disk of this machine" if locks else ""),
    )


def _try_lock(folder: Path) -> str:
    """Lock a file in a folder of ours; return why that failed, "" if it worked."""
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.strerror or str(error)
    return ""


def _list_places() -> dict[Path, None]:
    return dict.fromkeys(map(Path, (tempfile.gettempdir(), *_PLACES)))


def find_private_temporary(prefix: str) -> Iterator[Path]:
    """Yield the folders that processes of this user have made with a prefix, those that are in use among them."""
    for place in _list_places():
        with suppress(OSError):
            names = [] if find_exposed_parents(place / prefix) else os.listdir(place)
            paths = (place / name for name in names if name.startswith(prefix))
            yield from (path for path in paths if is_plain_folder(path) and path.lstat().st_uid == os.geteuid())


@contextmanager
def private_temporary(prefix: str, *, locks: bool = False) -> Iterator[Path]:
    """Yield such a folder, which is deleted at the end."""
    folder = make_private_temporary(prefix, locks=locks)
    try:
        yield folder
    finally:
        remove_made(folder)
