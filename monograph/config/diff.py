"""How two configurations differ: the paths, with both values, rather than two hashes that do not match."""

from dataclasses import dataclass
from typing import Any

from monograph.config.configurable import BaseConfig, walk_configs
from monograph.config.json_form import is_same
from monograph.config.leaves import find_leaves
from monograph.config.references import name_of
from monograph.config.text import format_value


class Absent:
    """Stands for a field that only the other configuration has."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = Absent()


@dataclass(frozen=True)
class ConfigDifference:
    """One path at which two configurations disagree."""

    path: str
    left: Any
    right: Any

    def __str__(self) -> str:
        left, right = (str(side) if side is ABSENT else format_value(side) for side in (self.left, self.right))
        return f"{self.path}: {left} -> {right}"


def find_differences(left: BaseConfig, right: BaseConfig) -> list[ConfigDifference]:
    """Every path that differs, in the left one's order; sections of different classes also differ in `$class`."""
    sides = [
        {**_find_classes(config), **{leaf.path: leaf.value for leaf in find_leaves(config)}} for config in (left, right)
    ]
    found = []
    for path in dict.fromkeys([*sides[0], *sides[1]]):
        ours, theirs = (side.get(path, ABSENT) for side in sides)
        if ABSENT in (ours, theirs) or not is_same(ours, theirs):
            found.append(ConfigDifference(path, ours, theirs))
    return [each for each in found if not (each.path.endswith("$class") and ABSENT in (each.left, each.right))]


def _find_classes(config: BaseConfig) -> dict[str, str]:
    return {f"{path}.$class".lstrip("."): name_of(type(section)) for path, section in walk_configs(config)}
