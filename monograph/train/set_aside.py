"""Renaming what would otherwise be written over. Loads without torch."""

import itertools
import os
from pathlib import Path


def find_free(path: Path) -> Path:
    """The first of `<name>.1`, `<name>.2`, ... that does not exist."""
    free = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    return next(candidate for candidate in free if not os.path.lexists(candidate))


def set_aside(path: Path) -> Path:
    """Rename a file or folder to the first free of `<name>.1`, `<name>.2`, ... and say which."""
    kept = find_free(path)
    path.rename(kept)
    return kept
