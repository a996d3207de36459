"""The page on the public API: what `monograph.__all__` names, with signatures and docstrings."""

import inspect
from collections.abc import Iterator
from types import ModuleType

import monograph
from monograph.config.docs import find_field_docs

LINE = 100
"""A longer signature has one line for each argument."""


def make_api_page(module: ModuleType = monograph) -> str:
    """Every public name, in the order of `__all__`."""
    return "\n".join(_make_lines(module)) + "\n"


def find_public_names(module: ModuleType) -> list[str]:
    """What a module promises: its `__all__`, or its version where it has none."""
    return list(getattr(module, "__all__", ["__version__"]))


def _make_lines(module: ModuleType) -> Iterator[str]:
    yield from ("# Python API", "", "```python", f"import {module.__name__} as mg", "```", "")
    yield "These names are promised: a change of one is announced. Everything else in the package may change."
    for name in find_public_names(module):
        yield from ("", f"## {name.replace('__', chr(92) + '_' + chr(92) + '_')}", "")
        yield from _describe(name, inspect.unwrap(getattr(module, name)))


def _describe(name: str, value: object) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _describe_class(name, value)
    elif inspect.isroutine(value):
        yield from ("```python", *format_signature(f"def {name}", value), "```", "", inspect.getdoc(value) or "")
    elif isinstance(value, ModuleType):
        yield f"Module `{value.__name__}`: {inspect.getdoc(value) or ''}"
    else:
        yield from ("```python", f"{name} = {value!r}", "```")


def _describe_class(name: str, value: type) -> Iterator[str]:
    yield from ("```python", *format_signature(f"class {name}", value), "```", "", inspect.getdoc(value) or "")
    if hasattr(value, "__dataclass_fields__"):
        yield ""
        yield from (f"- `{field}`: {doc}" for field, doc in find_field_docs(value).items() if not field.startswith("_"))
    for member, what in vars(value).items():
        function = what.__func__ if isinstance(what, classmethod | staticmethod) else what
        if member.startswith("_") or not (inspect.isfunction(function) or isinstance(what, property)):
            continue
        yield from ("", f"### {name}.{member}", "")
        if inspect.isfunction(function):
            yield from ("```python", *format_signature(f"def {member}", function), "```", "")
        yield inspect.getdoc(what) or ""


def format_signature(head: str, value: object) -> list[str]:
    """`head(arguments) -> result`, on one line or with one line for each argument."""
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return [head]
    line = f"{head}{signature}"
    if len(line) <= LINE:
        return [line]
    arguments = [f"    {each}," for each in _spell_arguments(signature)]
    result = signature.return_annotation
    arrow = "" if result is inspect.Signature.empty else f" -> {inspect.formatannotation(result)}"
    return [f"{head}(", *arguments, f"){arrow}"]


def _spell_arguments(signature: inspect.Signature) -> Iterator[str]:
    has_star = False
    for each in signature.parameters.values():
        has_star = has_star or each.kind is each.VAR_POSITIONAL
        if each.kind is each.KEYWORD_ONLY and not has_star:
            has_star = True
            yield "*"
        yield str(each)
