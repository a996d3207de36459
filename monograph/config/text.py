"""Configurations as text: one `path = value` line per field, in a fixed order.

The golden files are this text. A default that changes, anywhere, shows up in review as a changed line.
"""

import dataclasses
import enum
import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from monograph.config.annotations import find_annotations, find_element, find_members
from monograph.config.configurable import BaseConfig, find_children, walk_configs
from monograph.config.leaves import find_leaves
from monograph.config.references import name_of


def format_value(value: Any) -> str:
    """One value as Python would write it, the same on every machine and in every run."""
    if isinstance(value, BaseConfig):
        return name_of(type(value))
    if isinstance(value, PurePath):
        return repr(str(value))
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, dict):
        return "{" + ", ".join(f"{format_value(key)}: {format_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(format_value(item) for item in value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(format_value(item) for item in value) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(format_value(item) for item in value) + ("," if len(value) == 1 else "") + ")"
    return name_of(value) if callable(value) else repr(value)


def format_words(value: Any) -> str:
    """One value as it would be typed after its flag; empty when it has no short form (an empty text, a nested list)."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (str, PurePath)):
        return shlex.quote(str(value)) if str(value) else ""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)) and not any(isinstance(item, (list, tuple, dict)) for item in value):
        return " ".join(format_words(item) for item in value)
    return name_of(value) if callable(value) else ""


def format_config(config: BaseConfig) -> str:
    """The whole configuration; a section's class is named where it is not the one its field has by itself."""
    return "\n".join(f"{path} = {value}" for path, value in format_fields(config)) + "\n"


def format_fields(config: BaseConfig) -> Iterator[tuple[str, str]]:
    """(path, value) of every field, and of sections with another class than usual before their fields."""
    swapped = dict(find_swapped(config))
    for leaf in find_leaves(config):
        for path in [path for path in swapped if leaf.path.startswith(f"{path}.")]:
            yield path, swapped.pop(path)
        yield leaf.path, format_value(leaf.value)
    yield from swapped.items()


def find_swapped(config: BaseConfig) -> Iterator[tuple[str, str]]:
    """(path, class) of every section whose class is neither the default of its field nor what the field declares."""
    for path, section in walk_configs(config):
        annotations = find_annotations(type(section))
        defaults = {each.name: each.default_factory for each in dataclasses.fields(section)}
        for name, value in find_children(section):
            field, _, entry = name.partition(".")
            declared = find_element(annotations[field], 0) if entry else annotations.get(field)
            usual = (*find_members(declared), defaults.get(field))
            if isinstance(value, BaseConfig) and type(value) not in usual:
                yield f"{path}.{name}" if path else name, name_of(type(value))
