"""Every class of the package: what pages about errors and components are made from."""

import functools
import importlib
import pkgutil
import sys
from typing import TypeVar

import monograph

T = TypeVar("T")

GPU_ONLY = "_on_gpu", "_on_hopper"
"""Ends of the names of modules that hold GPU kernels and nothing that a page lists."""


@functools.cache
def import_package() -> None:
    """Import every module of the package, so that all subclasses are known."""
    for module in pkgutil.walk_packages(monograph.__path__, "monograph."):
        if not module.name.endswith((*GPU_ONLY, "__main__")):
            importlib.import_module(module.name)


def find_subclasses(base: type[T]) -> list[type[T]]:
    """All public subclasses in the package, by name; a slotted dataclass is counted once."""
    import_package()
    found: list[type[T]] = []
    waiting: list[type[T]] = [base]
    while waiting:
        for each in waiting.pop().__subclasses__():
            waiting.append(each)
            if each not in found and each.__module__.startswith("monograph.") and _is_reachable(each):
                found.append(each)
    return sorted(found, key=lambda each: each.__qualname__)


def _is_reachable(each: type) -> bool:
    value: object = sys.modules[each.__module__]
    for name in each.__qualname__.split("."):
        value = getattr(value, name, None)
    return value is each
