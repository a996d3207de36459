"""Kernels that Triton built, as files that can be put somewhere else.

Triton finds what belongs to a kernel by a list of absolute paths; taken along, the list has names only.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

NEEDED = (".cubin", ".hsaco", ".json", ".so")
"""Endings of what a launch needs: the kernel, what is known of it, what launches it."""
_LIST = "__grp__"
_PATHS = "child_paths"


@contextmanager
def triton_folder(folder: Path) -> Iterator[None]:
    """Inside, Triton keeps what it builds in this folder, and finds there what is in it."""
    with mock.patch.dict(os.environ, {"TRITON_CACHE_DIR": str(folder)}):
        yield


def take_kernels(folder: Path) -> dict[str, bytes]:
    """Name -> content of all that was built in a folder."""
    files: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in NEEDED and path.is_file():
            content = path.read_bytes()
            if path.name.startswith(_LIST):
                listed = json.loads(content)[_PATHS]
                names = sorted(name for name in listed if Path(name).suffix in NEEDED)
                content = json.dumps({_PATHS: {name: name for name in names}}).encode()
            files[path.relative_to(folder).as_posix()] = content
    return files


def put_kernels(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write such files into another folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name.startswith(_LIST):
            names = json.loads(content)[_PATHS]
            content = json.dumps({_PATHS: {each: str(path.parent / each) for each in names}}).encode()
        path.write_bytes(content)
        path.chmod(0o700)
