"""Where each value comes from: the default of its class, the recipe, or a flag.

A recipe is plain Python, so nothing can watch it set a value. Instead the result is compared with what the classes
would have given by themselves.
"""

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any, Literal

from monograph.config.configurable import BaseConfig, expand_field, find_children
from monograph.config.json_form import is_same

Origin = Literal["default", "recipe", "flag"]


def find_origins(config: BaseConfig, flags: Collection[str] = ()) -> dict[str, Origin]:
    """Dotted path -> origin, for every field. `flags` are the paths set on the command line."""
    origins = dict(_compare(config, None, ""))
    origins.update((path, "flag") for path in flags if path in origins)
    return origins


def _compare(config: BaseConfig, reference: Any, prefix: str) -> Iterator[tuple[str, Origin]]:
    """`reference` is what this section would have been without the recipe, as far as anyone can know."""
    defaults = _find_defaults(config, reference)
    for name, value in find_children(config):
        default = defaults.get(name, dataclasses.MISSING)
        if isinstance(value, BaseConfig):
            yield from _compare(value, default, f"{prefix}{name}.")
        else:
            is_default = default is not dataclasses.MISSING and is_same(value, default)
            yield f"{prefix}{name}", "default" if is_default else "recipe"


def _find_defaults(config: BaseConfig, reference: Any) -> dict[str, Any]:
    if type(reference) is type(config):
        return dict(find_children(reference))
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        defaults.update(expand_field(field.name, value))
    return defaults
