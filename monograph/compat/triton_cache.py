"""Kernels that Triton built, as files that can be put somewhere else.

Triton finds what belongs to a kernel by a list of absolute paths; taken along, the list has names only.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from monograph.compat.environment import variables_set

NEEDED = (".cubin", ".hsaco", ".json", ".so")
"""Endings of what a launch needs: the kernel, what is known of it, what launches it."""
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
            content = path.read_bytes()
            if path.name.startswith(_LIST):
                listed = json.loads(content)[_PATHS]
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
            found = json.loads(content)
            names = found.get(_PATHS) if isinstance(found, dict) else None
            known = {Path(each).name for each in files if Path(each).parent == Path(name).parent}
            if not isinstance(names, dict) or not names.keys() <= known:
                raise ValueError(f"{name} lists other files than those beside it")
            content = json.dumps({_PATHS: {each: str(path.parent / each) for each in names}}).encode()
        path.write_bytes(content)
        path.chmod(0o700)
