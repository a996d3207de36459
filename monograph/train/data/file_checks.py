"""Whether files hold what their hashes say. Reading takes as long as the disk does: who shares files shares that."""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from monograph.errors import DataError
from monograph.system.foreign_text import show
from monograph.train.data.open_bytes import check_regular

READ_BYTES = 1 << 24
"""Bytes hashed at a time."""
_THREADS = 4


@dataclass(frozen=True, slots=True)
class FileCheck:
    """A file and the hash it should have."""

    path: Path
    sha256: str


FileChecker = Callable[[Sequence[FileCheck]], None]
"""Raises DataError when one of the files is not what it should be."""


def check_here(files: Sequence[FileCheck]) -> None:
    """Read all files in this process."""
    problem = find_damage(files)
    if problem is not None:
        raise problem


def find_damage(files: Sequence[FileCheck]) -> DataError | None:
    """The first file that is not what it should be; several are read at a time."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return next((each for each in pool.map(_find_problem, files) if each is not None), None)


def identify(files: Sequence[FileCheck]) -> str:
    """The same on all machines that see these very files, other where they are copies: by inode and time of change."""
    stats = (each.path.stat() for each in files)
    return hashlib.sha256(repr([(each.st_ino, each.st_size, each.st_ctime_ns) for each in stats]).encode()).hexdigest()


def damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"the token shard '{show(path)}' is damaged", why=show(why), do="copy it again, or pack the data again"
    )


def _find_problem(file: FileCheck) -> DataError | None:
    found = hashlib.sha256()
    try:
        check_regular(file.path)
        with file.path.open("rb") as opened:
            while data := opened.read(READ_BYTES):
                found.update(data)
    except OSError as error:
        return damaged(file.path, str(error))
    except DataError as error:
        return error
    return None if found.hexdigest() == file.sha256 else damaged(file.path, "its sha256 is not the one in index.json")
