"""The built-in corpus: the source files of the running Python's standard library.

Real text on every machine, nothing to download, and anyone can look up what a model was trained on. The order is the
sorted relative path, so the same Python release gives the same corpus; its hash is in the log.
"""

import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from monograph.errors import DataError
from monograph.train.data.document import Document, DocumentSource

SKIPPED_FOLDERS = frozenset(
    {
        "__pycache__",
        "dist-packages",  # installed packages: differ between machines
        "encodings",  # character tables
        "idle_test",
        "site-packages",
        "test",
        "tests",
    }
)
MACHINE_PREFIXES = ("_sysconfigdata", "sitecustomize", "usercustomize")
"""Files that hold this machine's paths and compiler flags."""


def find_builtin_files(root: Path) -> list[Path]:
    """The files of the corpus in their order."""
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        found += [
            Path(folder, name) for name in names if name.endswith(".py") and not name.startswith(MACHINE_PREFIXES)
        ]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def open_builtin(root: Path | None = None) -> DocumentSource:
    """The standard library's sources as documents."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    files = find_builtin_files(root)
    if not files:
        raise DataError(
            f"the built-in corpus is empty: no Python sources in {root}",
            why="this Python was installed without the sources of its standard library",
            do="--dataloader.dataset PATH with your own text",
        )

    def read() -> Iterator[Document]:
        for path in files:
            name = path.relative_to(root).as_posix()
            yield Document(name, path.read_bytes().decode("utf-8", errors="replace"))

    return DocumentSource(f"standard library of Python {platform.python_version()}", read)
