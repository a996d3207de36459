"""Digests of code that a configuration names and that is not of this package. Loads without torch."""

import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from monograph.config.references import name_of
from monograph.errors import ConfigError

_NOT_OWN = (
    str(Path(__file__).parents[1]),
    *sorted({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}),
)
"""Folders of this package and of installed ones."""


def hash_sources(things: Iterable[Any]) -> dict[str, str]:
    """Reference -> digest of the modules that define a class or a function, and of those that they use.

    Whole modules, because code calls what stands beside it; installed packages have versions of their own.
    """
    return {name_of(thing): _hash_modules(thing) for thing in things}


def is_own(thing: Any) -> bool:
    """Whether a class or a function is a user's own: not of this package, and not installed."""
    return _is_own_module(sys.modules.get(getattr(thing, "__module__", "")))


def _hash_modules(thing: Any) -> str:
    digest = hashlib.sha256()
    for module in _find_modules(thing):
        try:
            source = inspect.getsource(module)
        except (OSError, TypeError):
            raise ConfigError(
                f"the source of {module.__name__} cannot be read",
                why=f"an artifact remembers which version of {name_of(thing)} made it",
                do="define it in a file",
            ) from None
        digest.update(f"{module.__name__}\n{source}".encode())
    return digest.hexdigest()[:16]


def _find_modules(thing: Any) -> list[ModuleType]:
    """A user's modules behind a class or a function, by name: those of its bases, and those that these use."""
    kinds = thing.__mro__ if isinstance(thing, type) else (thing,)
    todo = [sys.modules.get(kind.__module__) for kind in kinds]
    found: dict[str, ModuleType] = {}
    while todo:
        module = todo.pop()
        if module is not None and _is_own_module(module) and module.__name__ not in found:
            found[module.__name__] = module
            todo += _find_used(module)
    return [found[name] for name in sorted(found)]


def _find_used(module: ModuleType) -> Iterator[ModuleType | None]:
    """The modules that a module's names come from."""
    for value in list(vars(module).values()):
        yield value if isinstance(value, ModuleType) else sys.modules.get(str(getattr(value, "__module__", "")))


def _is_own_module(module: ModuleType | None) -> bool:
    if module is None:
        return False
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ == "__main__"  # of a notebook: its source cannot be read, and that is an error
    path = Path(file)  # torch.ops has one that is no path
    return path.is_absolute() and not any(path.is_relative_to(place) for place in _NOT_OWN)
