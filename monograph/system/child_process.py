"""Start Python processes in which no file of the working folder runs.

`python -m`, and `python -c` by which multiprocessing starts processes, look for modules in the working folder first: in
a downloaded folder that holds a tyro.py or a pickle.py, that file would run in place of the library's.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SAFE = "PYTHONSAFEPATH"
"""Python's own variable for `-P`; processes that a child starts inherit it."""
_PATH = "PYTHONPATH"
_ROOT = str(Path(__file__).resolve().parents[2])
"""The folder that this package lies in."""


@contextmanager
def safe_import_path() -> Iterator[None]:
    """Let the Python processes that start inside find this package, and nothing in the working folder.

    Where the package lies in the working folder itself and is not installed, that folder comes last.
    """
    before = {name: os.environ.get(name) for name in (_SAFE, _PATH)}
    os.environ[_SAFE] = "1"
    if not sys.flags.safe_path and sys.path[:1] == [_ROOT] and _ROOT not in sys.path[1:]:
        os.environ[_PATH] = os.pathsep.join(filter(None, (before[_PATH], _ROOT)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
