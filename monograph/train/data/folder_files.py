"""Files below a folder: linked folders are entered once each, and what cannot be read or leads nowhere is an error."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from monograph.errors import DataError
from monograph.system.foreign_text import show


@dataclass(slots=True)
class FolderFiles:
    """Everything that was met below a folder."""

    files: list[Path] = field(default_factory=list)
    """Regular files and links to such, sorted by their paths below the folder."""
    linked: set[Path] = field(default_factory=set)
    """Those of `files` that are links."""
    special: list[Path] = field(default_factory=list)
    """FIFOs, sockets and devices."""
    hidden: list[Path] = field(default_factory=list)
    """Names that begin with a dot; hidden folders are not entered."""
    repeated: list[Path] = field(default_factory=list)
    """What lies in the dataset under another name as well, links into a cycle among them."""


def list_files(folder: Path) -> FolderFiles:
    """Walk a folder. The folders that lie in it come first, so they keep their names; then those that links lead to.

    Folders are told apart by their real paths: inode numbers are not unique on every network file system.
    """
    found = FolderFiles()
    seen: set[str] = set()
    waiting = _walk(folder, os.path.realpath(folder), seen, found)
    while waiting:
        link = min(waiting, key=Path.as_posix)
        waiting.remove(link)
        waiting += _walk(link, os.path.realpath(link), seen, found)
    for paths in (found.files, found.special, found.hidden, found.repeated):
        paths.sort(key=lambda path: path.relative_to(folder).as_posix())
    return found


def _walk(folder: Path, real: str, seen: set[str], found: FolderFiles) -> list[Path]:
    """Enter a folder and those in it; return the links to other folders."""
    links, waiting = [], [(folder, real)]
    while waiting:
        folder, real = waiting.pop()
        if real in seen:
            found.repeated.append(folder)
            continue
        seen.add(real)
        for path, mode, is_link in _scan(folder):
            if path.name.startswith("."):
                found.hidden.append(path)
            elif stat.S_ISDIR(mode) and is_link:
                links.append(path)
            elif stat.S_ISDIR(mode):
                waiting.append((path, os.path.join(real, path.name)))
            else:
                (found.files if stat.S_ISREG(mode) else found.special).append(path)
                found.linked |= {path} if is_link else set()
    return links


def _scan(folder: Path) -> Iterator[tuple[Path, int, bool]]:
    """Path, mode (for links, that of their target) and whether it is a link, of everything in a folder."""
    path = folder
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                path = folder / entry.name
                is_hidden = entry.name.startswith(".")
                yield path, 0 if is_hidden else entry.stat().st_mode, entry.is_symlink()
    except OSError as error:
        leads_nowhere = path.is_symlink() and not os.path.exists(path)
        target = f" to {show(os.readlink(path))}" if leads_nowhere else ""
        raise DataError(
            f"cannot read '{show(path)}'" + (f": the link{target} leads nowhere" if leads_nowhere else ""),
            why=f"{show(error.strerror or error)}; leaving it out would be other data than the folder's",
            do="repair it, make it readable, or take it out of the dataset",
        ) from None
