"""Kernels that Triton built, as files that can be put somewhere else.

Triton finds what belongs to a kernel by a list of absolute paths; taken along, the list has names only.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from monograph.compat.environment import variables_set
from monograph.system.foreign_json import parse_json, read_file
from monograph.system.own_file import create_own

NEEDED = (".cubin", ".hsaco", ".json", ".so")
"""Endings of what a launch needs: the kernel, what is known of it, what launches it."""
_MAX_BYTES = 1 << 30
_LIST = "__grp__"
_PATHS = "child_paths"


@contextmanager
def triton_folder(folder: Path) -> Iterator[None]:
    """Inside, Triton keeps what it builds in this folder, and finds there what is in it."""
    with variables_set({"TRITON_CACHE_DIR": str(folder)}):
        yield


def take_kernels(folder: Path) -> dict[str, bytes]:
    """Name -> content of all that was built in a folder."""
    files: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in NEEDED and path.is_file():
            content = read_file(path, max_bytes=_MAX_BYTES)
            if path.name.startswith(_LIST):
                listed = parse_json(content, path.name, kind=dict)[_PATHS]
                names = sorted(name for name in listed if Path(name).suffix in NEEDED)
                content = json.dumps({_PATHS: {name: name for name in names}}).encode()
            files[path.relative_to(folder).as_posix()] = content
    return files


def put_kernels(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write such files into another folder. A list may name files beside it only, and only those that came along."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name.startswith(_LIST):
            names = parse_json(content, name, kind=dict).get(_PATHS)
            known = {Path(each).name for each in files if Path(each).parent == Path(name).parent}
            if not isinstance(names, dict) or not names.keys() <= known:
                raise ValueError(f"{name} lists other files than those beside it")
            content = json.dumps({_PATHS: {each: str(path.parent / each) for each in names}}).encode()
        with open(create_own(path), "wb") as file:
            file.write(content)
        path.chmod(0o700)
