"""Whether files hold what their hashes say. Reading takes as long as the disk does: who shares files shares that."""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from monograph.errors import DataError, MonographError
from monograph.system.foreign_json import open_regular
from monograph.system.foreign_text import show

READ_BYTES = 1 << 24
"""Bytes hashed at a time."""
_THREADS = 4


class Check(Protocol):
    """Work that reads a file or a folder of them."""

    @property
    def path(self) -> Path:
        """The file, or one that stands for all that are read."""
        ...

    def find_problem(self) -> DataError | None:
        """Read everything and say what is not as it should be."""
        ...


@dataclass(frozen=True, slots=True)
class FileCheck:
    """A file and the hash it should have."""

    path: Path
    sha256: str

    def find_problem(self) -> DataError | None:
        """Hash the file."""
        found = hashlib.sha256()
        try:
            with open_regular(self.path) as opened:
                while data := opened.read(READ_BYTES):
                    found.update(data)
        except (OSError, MonographError) as error:
            return damaged(self.path, error.why if isinstance(error, MonographError) else str(error))
        is_same = found.hexdigest() == self.sha256
        return None if is_same else damaged(self.path, "its sha256 is not the one in index.json")


FileChecker = Callable[[Sequence[Check]], None]
"""Raises DataError when one of the files is not what it should be."""


def check_here(checks: Sequence[Check]) -> None:
    """Read all files in this process."""
    problem = find_damage(checks)
    if problem is not None:
        raise problem


def find_damage(checks: Sequence[Check]) -> DataError | None:
    """The last file that is not what it should be; several are read at a time.

    Work on many files begins first, since it takes longest, and says less about what is wrong than the rest.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        problems = [each for each in pool.map(lambda check: check.find_problem(), checks) if each is not None]
    return problems[-1] if problems else None


def identify(checks: Sequence[Check]) -> str:
    """The same on all machines that see these very files, other where they are copies: by inode and time of change."""
    stats = (each.path.stat() for each in checks)
    return hashlib.sha256(repr([(each.st_ino, each.st_size, each.st_ctime_ns) for each in stats]).encode()).hexdigest()


def damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"the token shard '{show(path)}' is damaged", why=show(why), do="copy it again, or pack the data again"
    )
