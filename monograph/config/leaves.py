"""A configuration as a flat list of fields with dotted paths, and back.

The walk follows the actual objects, not the declared types. So the fields of a subclassed Config, or of a component
swapped by a recipe, appear on the command line and in every table without being registered anywhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from monograph.config.annotations import find_annotations, find_name_lists
from monograph.config.configurable import BaseConfig, find_children, has_configs, walk_configs
from monograph.config.docs import find_field_docs


@dataclass(frozen=True)
class Leaf:
    """One settable value: where it is, what it holds, what it may hold and what it is for."""

    path: str
    value: Any
    annotation: Any = field(compare=False)
    doc: str = field(compare=False)
    has_names: bool = field(default=False, compare=False)
    """Whether it holds `Names`."""

    @property
    def section(self) -> str:
        """The path of the Config the field belongs to; empty for the outermost."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The field's own name."""
        return self.path.rpartition(".")[2]


def find_leaves(config: BaseConfig) -> list[Leaf]:
    """Every settable field, in the order in which the classes declare them."""
    return [leaf for path, section in walk_configs(config) for leaf in _find_own_leaves(path, section)]


def _find_own_leaves(path: str, section: BaseConfig) -> Iterator[Leaf]:
    annotations, docs = find_annotations(type(section)), find_field_docs(type(section))
    names = find_name_lists(type(section))
    for name, value in find_children(section):
        if not isinstance(value, BaseConfig):
            yield Leaf(f"{path}.{name}" if path else name, value, annotations[name], docs[name], name in names)


def find_sections(config: BaseConfig) -> dict[str, BaseConfig]:
    """Dotted path -> nested Config, without the outermost one."""
    return {path: section for path, section in walk_configs(config) if path}


def replace_leaf(config: BaseConfig, path: str, value: Any) -> Any:
    """A copy of the config with one field changed.

    Only the objects on the way are copied: where a recipe uses one object in two places, the other one keeps its value.
    """
    name, _, rest = path.partition(".")
    if not rest:
        return config.replace(**{name: value})
    return config.replace(**{name: _replace_inside(getattr(config, name), rest, value)})


def _replace_inside(holder: Any, path: str, value: Any) -> Any:
    if not has_configs(holder):
        return replace_leaf(holder, path, value)
    key, _, rest = path.partition(".")
    if isinstance(holder, dict):
        return {**holder, key: replace_leaf(holder[key], rest, value) if rest else value}
    entries = list(holder)
    entries[int(key)] = replace_leaf(entries[int(key)], rest, value) if rest else value
    return type(holder)(entries)
