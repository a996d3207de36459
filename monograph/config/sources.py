"""Digests of code that a configuration names and that is not of this package. Loads without torch.

What a module uses is found in its import statements, not in its loaded names: the answer is then the same before and
after anything is imported, and names of plain values are followed as well. Nothing is imported to find it.
"""

import ast
import hashlib
import importlib.util
import os
import site
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from monograph.config.references import name_of
from monograph.errors import ConfigError

_NOT_OWN = (
    str(Path(__file__).parents[1]),
    *sorted({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}),
    *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
)
"""Folders of this package and of installed ones."""
_INSTALLED = ("site-packages", "dist-packages")
_READING = frozenset(
    [
        *("open", "read_text", "read_bytes", "load", "load_file", "safe_load", "full_load", "unsafe_load", "fromfile"),
        *("loadtxt", "genfromtxt", "memmap", "read_csv", "read_json", "read_parquet", "open_text", "open_binary"),
        *("get_data", "urlopen", "run", "check_output", "popen", "Popen", "from_pretrained", "hf_hub_download"),
    ]
)
"""Names of calls by which code reads what is not in its source."""
STARTED = time.time()
"""Before any module of a user's was imported by this package."""


def hash_sources(things: Iterable[Any]) -> dict[str, str]:
    """Reference -> digest of the modules that define a class or a function, and of those that they import.

    Whole modules, because code calls what stands beside it; installed packages have versions of their own.
    """
    return {name_of(thing): _hash_modules(thing) for thing in things}


def find_readers(things: Iterable[Any]) -> list[str]:
    """`FILE calls NAME` for a user's modules behind these that read files, by the names of their calls."""
    paths = {path for thing in things for path in _find_files(thing).values() if path.suffix == ".py"}
    return [f"{path} calls {name}" for path in sorted(paths) for name in _find_reading_calls(path)]


def _find_reading_calls(path: Path) -> list[str]:
    calls = [node.func for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)]
    names = [each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in calls]
    return [name for name in dict.fromkeys(names) if name in _READING]


def find_changed() -> list[str]:
    """Files of loaded code that may have changed since this program started: what runs is not what they hold."""
    found = []
    for _, file in _find_loaded_files():
        if str(file).startswith(_NOT_OWN[0] + os.sep) or _is_own_file(file):
            with suppress(OSError):
                status = file.stat()
                if max(status.st_mtime, status.st_ctime) > STARTED:
                    found.append(str(file))
    return found


def is_own(thing: Any) -> bool:
    """Whether a class or a function is a user's own: not of this package, and not installed."""
    module = sys.modules.get(getattr(thing, "__module__", ""))
    file = getattr(module, "__file__", None)
    if file is None:
        return module is not None and module.__name__ == "__main__"  # of a notebook: an error, it cannot be read
    return _is_own_file(Path(file))


def _hash_modules(thing: Any) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(_find_files(thing).items()):
        digest.update(f"{name}\n".encode() + path.read_bytes() + b"\n")
    return digest.hexdigest()[:16]


def _find_files(thing: Any) -> dict[str, Path]:
    """A user's modules behind a class or a function: those of its bases, and those that these import."""
    kinds = thing.__mro__ if isinstance(thing, type) else (thing,)
    todo = [_locate_loaded(sys.modules[kind.__module__], thing) for kind in kinds if is_own(kind)]
    found: dict[str, Path] = {}
    while todo:
        name, package, path = todo.pop()
        if name not in found:
            found[name] = path
            todo += _find_imported(package, path)
    return found


def _locate_loaded(module: ModuleType, thing: Any) -> tuple[str, str, Path]:
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise ConfigError(
            f"the source of {module.__name__} cannot be read",
            why=f"an artifact remembers which version of {name_of(thing)} made it",
            do="define it in a file",
        )
    return module.__name__, module.__package__ or "", Path(file)


def _find_imported(package: str, path: Path) -> Iterator[tuple[str, str, Path]]:
    """A user's modules in the import statements of a file, with the packages that they lie in."""
    if path.suffix != ".py":
        return  # a compiled extension
    names = dict.fromkeys(_find_names(ast.parse(path.read_bytes()), package))
    for name in names:
        for spec in _find_specs(name):
            origin = spec.origin
            if origin and spec.has_location and _is_own_file(Path(origin)):
                is_package = spec.submodule_search_locations is not None
                yield spec.name, spec.name if is_package else spec.name.rpartition(".")[0], Path(origin)


def _find_names(tree: ast.Module, package: str) -> Iterator[str]:
    """What a file imports anywhere; of `from a import b`, both `a` and `a.b`, which may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(relative, package) if node.level and package else relative.lstrip(".")
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names)) if base else ()


def _find_specs(name: str) -> Iterator[ModuleSpec]:
    """Where a module and the packages around it are; nothing for what is no module."""
    places: Sequence[str] | None = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:count]), places)
        if spec is None:
            return
        yield spec
        places = spec.submodule_search_locations
        if places is None:
            return


def _find_spec(name: str, places: Sequence[str] | None) -> ModuleSpec | None:
    """A module's place by the finders that an import would ask."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, places) if find is not None else None
        if spec is not None:
            return spec
    return None


def _is_own_file(path: Path) -> bool:
    is_installed = any(part in _INSTALLED for part in path.parts)  # of whatever environment
    return path.is_absolute() and not is_installed and not any(path.is_relative_to(place) for place in _NOT_OWN)


def find_loaded_sources() -> dict[str, bytes]:
    """Module -> source of all code of a user's that is loaded now, whoever has imported it."""
    found = {}
    for name, file in _find_loaded_files():
        if _is_own_file(file):
            with suppress(OSError):  # deleted since
                found[name] = file.read_bytes()
    return found


@cache
def find_packages() -> dict[str, list[int]]:
    """Other installed package -> size and time of change of its first file, for all that are loaded at the first call.
    Of a namespace package, which has no file, all loaded modules count.

    Python, too, decides by them whether a compiled file is that of a source; a package that was installed again at the
    same version is noticed. What is loaded later is what captures and passes themselves import.
    """
    found = {}
    for name, file in _find_loaded_files():
        is_top = "." not in name or getattr(sys.modules.get(name.partition(".")[0]), "__file__", None) is None
        is_installed = any(part in _INSTALLED for part in file.parts) and not file.is_relative_to(_NOT_OWN[0])
        if is_top and is_installed:
            with suppress(OSError):
                status = file.stat()
                found[name] = [status.st_size, status.st_mtime_ns]
    return found


def _find_loaded_files() -> Iterator[tuple[str, Path]]:
    for name, module in sorted(sys.modules.items()):
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str):
            yield name, Path(file)
