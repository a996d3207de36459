"""Where each value comes from: the default of its class, the recipe, or a flag.

A recipe is plain Python, so nothing can watch it set a value. Instead the result is compared with what the classes
would have given by themselves.
"""

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any, Literal

from monograph.config.configurable import BaseConfig, expand_field, find_children
from monograph.config.json_form import is_same
from monograph.config.leaves import find_leaves
from monograph.config.text import find_swapped

Origin = Literal["default", "recipe", "flag"]


def find_origins(config: BaseConfig, flags: Collection[str] = ()) -> dict[str, Origin]:
    """Dotted path -> origin, for every field and every section of another class than usual.

    `flags` are the paths set on the command line.
    """
    defaults = find_defaults(config)
    origins: dict[str, Origin] = {
        leaf.path: "default" if leaf.path in defaults and is_same(leaf.value, defaults[leaf.path]) else "recipe"
        for leaf in find_leaves(config)
    }
    origins |= dict.fromkeys((path for path, _ in find_swapped(config)), "recipe")
    origins.update((path, "flag") for path in flags if path in origins)
    return origins


def find_defaults(config: BaseConfig) -> dict[str, Any]:
    """Dotted path -> the default value, for every field that has one."""
    return {path: value for path, value in _walk(config, None, "") if value is not dataclasses.MISSING}


def _walk(config: BaseConfig, reference: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """`reference` is what this section would have been without the recipe, as far as anyone can know."""
    defaults = _find_own_defaults(config, reference)
    for name, value in find_children(config):
        default = defaults.get(name, dataclasses.MISSING)
        if isinstance(value, BaseConfig):
            yield from _walk(value, default, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", default


def _find_own_defaults(config: BaseConfig, reference: Any) -> dict[str, Any]:
    if type(reference) is type(config):
        return dict(find_children(reference))
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        defaults.update(expand_field(field, value))
    return defaults
