"""Files of a checkpoint that stay readable when the run that wrote them deletes them. Loads without torch.

A run that trains keeps its newest checkpoints only. Another process that reads one would verify a file and find it
gone when it opens it for the weights. So it opens every file first: deleting takes away the name, not the content.
"""

import os
import resource
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from monograph.system.foreign_json import open_regular

_OPEN_FILES = Path("/proc/self/fd")
"""Linux shows open files here as files that can be opened again; elsewhere nothing is held."""


class HeldFiles:
    """Open files of one folder. They are closed when this object is deleted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str, int] = {}
        weakref.finalize(self, _close, self._held)

    def hold(self, names: Iterable[str]) -> None:
        """Open files by name, as many as half of this process's limit; those that cannot be opened are left out."""
        if not _OPEN_FILES.is_dir():
            return
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        for name in list(names)[:limit]:
            with suppress(OSError, ValueError), open_regular(self.folder / name) as file:
                self._held[name] = os.dup(file.fileno())

    def locate(self, name: str) -> Path:
        """A path that leads to the file, also after its name was taken away if it is held."""
        return _OPEN_FILES / str(self._held[name]) if name in self._held else self.folder / name


def _close(held: dict[str, int]) -> None:
    for file in held.values():
        os.close(file)
