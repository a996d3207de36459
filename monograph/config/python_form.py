"""A configuration as Python source: the expression that makes it, with the fields that differ from their defaults."""

import dataclasses
import enum
import json
import keyword
from pathlib import Path, PurePath
from typing import Any

from monograph.config.annotations import find_annotations
from monograph.config.configurable import BaseConfig
from monograph.config.json_form import is_same
from monograph.config.references import name_of

_INDENT = "    "


class _Imports:
    """What a source imports, each under a name that nothing else has in it."""

    def __init__(self, taken: str) -> None:
        self._owners: dict[str, tuple[str, str]] = {taken: ("", taken)}

    def use(self, thing: Any) -> str:
        """The expression for a class or function, which is imported from its module."""
        module, _, path = name_of(thing).partition(":")
        root, dot, inner = path.partition(".")
        name = root
        while self._owners.setdefault(name, (module, root)) != (module, root):
            name += "_"
        return name + dot + inner

    def lines(self) -> list[str]:
        """The import statements, sorted."""
        by_module: dict[str, list[str]] = {}
        for name, (module, root) in self._owners.items():
            if module:
                by_module.setdefault(module, []).append(root if name == root else f"{root} as {name}")
        return [f"from {module} import {', '.join(sorted(by_module[module]))}" for module in sorted(by_module)]


def render_recipe(name: str, config: BaseConfig, *, doc: str) -> str:
    """The source of a module with one recipe, which returns this configuration."""
    imports = _Imports(name)
    body = _render(config, 1, imports)
    root = imports.use(type(config))
    text = doc.replace("\\", "\\\\").replace('"', '\\"')
    function = f'def {name}() -> {root}:\n{_INDENT}"""{text}"""\n{_INDENT}return {body}\n'
    return "\n".join(imports.lines()) + "\n\n\n" + function


def make_identifier(text: str) -> str:
    """A function's name made of a folder's."""
    name = "".join(each if each.isalnum() and each.isascii() else "_" for each in text).strip("_").lower()
    name = name if name and not name[0].isdigit() else f"model_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def _render(value: Any, depth: int, imports: _Imports) -> str:
    if not isinstance(value, BaseConfig):
        return _render_plain(value, depth, imports)
    kind = imports.use(type(value))
    fields = [
        f"{field.name}={_render(getattr(value, field.name), depth + 1, imports)}"
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


def _render_plain(value: Any, depth: int, imports: _Imports) -> str:
    if isinstance(value, float) and value != value:
        return 'float("nan")'
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    if isinstance(value, dict):
        pairs = (f"{_render(key, depth, imports)}: {_render(item, depth, imports)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, enum.Enum):
        return f"{imports.use(type(value))}.{value.name}"
    if isinstance(value, PurePath):
        return f"{imports.use(Path)}({json.dumps(str(value), ensure_ascii=False)})"
    if isinstance(value, (set, frozenset)):
        inner = ", ".join(sorted(_render(item, depth, imports) for item in value))
        return f"{type(value).__name__}([{inner}])"
    if callable(value):
        return imports.use(value)
    if isinstance(value, (list, tuple)):
        entries = [_render(item, depth, imports) for item in value]
        inner = ", ".join(entries) + ("," if isinstance(value, tuple) and len(entries) == 1 else "")
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    return json.dumps(value, ensure_ascii=False, allow_nan=False) if isinstance(value, str) else repr(value)


def _is_default(field: "dataclasses.Field[Any]", value: Any) -> bool:
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if default is dataclasses.MISSING:
        return False
    return type(default) is type(value) and is_same(default, value)
