"""Temporary folders for what is run or unpickled: in places where no other user can put another folder in their stead.

A new folder of mode 0700 is not enough: in a folder that others can write to, and that has no sticky bit as /tmp has,
they rename it and make one of the same name.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monograph.errors import ConfigError
from monograph.permissions import find_exposed_parents
from monograph.system.foreign_text import show
from monograph.system.own_tree import remove_made

_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
"""Where TMPDIR cannot be used, in this order."""


def make_private_temporary(prefix: str) -> Path:
    """Make a folder that only this user can enter, write to and rename; in TMPDIR where that is a place for it."""
    chosen = Path(tempfile.gettempdir())
    reasons = []
    for place in dict.fromkeys((chosen, *map(Path, _PLACES))):
        exposed = find_exposed_parents(place / prefix)
        try:
            if not exposed:
                return Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        except OSError as error:
            exposed = [f"{place}: {error.strerror}"]
        reasons += exposed[:1]
    raise ConfigError(
        f"no temporary folder can be made that other users cannot replace; TMPDIR is {show(chosen)}",
        why="; ".join(map(show, reasons)),
        do="set TMPDIR to a folder of yours (mode 0700)",
    )


@contextmanager
def private_temporary(prefix: str) -> Iterator[Path]:
    """Yield such a folder, which is deleted at the end."""
    folder = make_private_temporary(prefix)
    try:
        yield folder
    finally:
        remove_made(folder)
