"""A configuration as Python source: the expression that makes it, with the fields that differ from their defaults."""

import dataclasses
import json
import keyword
from typing import Any

from monograph.config.annotations import find_annotations
from monograph.config.configurable import BaseConfig
from monograph.config.json_form import is_same
from monograph.config.references import name_of

_INDENT = "    "


def render_recipe(name: str, config: BaseConfig, *, doc: str) -> str:
    """The source of a module with one recipe, which returns this configuration."""
    kinds: dict[str, str] = {}
    body = _render(config, 1, kinds)
    modules = sorted(set(kinds.values()))
    names = {module: sorted(kind for kind, each in kinds.items() if each == module) for module in modules}
    imports = [f"from {module} import {', '.join(names[module])}" for module in modules]
    root = type(config).__name__
    function = f'def {name}() -> {root}:\n{_INDENT}"""{doc}"""\n{_INDENT}return {body}\n'
    return "\n".join(imports) + "\n\n\n" + function


def make_identifier(text: str) -> str:
    """A function's name made of a folder's."""
    name = "".join(each if each.isalnum() and each.isascii() else "_" for each in text).strip("_").lower()
    name = name if name and not name[0].isdigit() else f"model_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def _render(value: Any, depth: int, kinds: dict[str, str]) -> str:
    if not isinstance(value, BaseConfig):
        return _render_plain(value, depth, kinds)
    module, _, kind = name_of(type(value)).partition(":")
    kinds[kind.partition(".")[0]] = module
    fields = [
        f"{field.name}={_render(getattr(value, field.name), depth + 1, kinds)}"
        for field in dataclasses.fields(value)
        if field.name in find_annotations(type(value)) and not _is_default(field, getattr(value, field.name))
    ]
    if not fields:
        return f"{kind}()"
    short = f"{kind}({', '.join(fields)})"
    if "\n" not in short and len(short) + len(_INDENT) * depth < 100:
        return short
    inner = _INDENT * (depth + 1)
    lines = "".join(f"{inner}{field},\n" for field in fields)
    return f"{kind}(\n{lines}{_INDENT * depth})"


def _render_plain(value: Any, depth: int, kinds: dict[str, str]) -> str:
    if isinstance(value, float) and value != value:
        return 'float("nan")'
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    if isinstance(value, dict):
        pairs = (f"{_render(key, depth, kinds)}: {_render(item, depth, kinds)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        entries = [_render(item, depth, kinds) for item in value]
        inner = ", ".join(entries) + ("," if isinstance(value, tuple) and len(entries) == 1 else "")
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    return json.dumps(value, ensure_ascii=False, allow_nan=False) if isinstance(value, str) else repr(value)


def _is_default(field: "dataclasses.Field[Any]", value: Any) -> bool:
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if default is dataclasses.MISSING:
        return False
    return type(default) is type(value) and is_same(default, value)
