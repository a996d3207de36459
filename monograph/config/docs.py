"""The one-line description of every field: the string literal that follows it in the class, or its metadata's `doc`.

Python throws these strings away, so they are read from the source. One place to write them (next to the field) gives
the help text, the tables and the editor's hover.
"""

import ast
import functools
import inspect
import sys
from dataclasses import fields
from pathlib import Path


def find_field_docs(config: type) -> dict[str, str]:
    """Field name -> description, for all fields of a Config class; the most derived class that says something wins."""
    return _read_field_docs(config)


@functools.cache
def _read_field_docs(config: type) -> dict[str, str]:
    docs: dict[str, str] = {}
    for base in reversed(config.__mro__):
        docs.update(_read_module_docs(base.__module__).get(base.__qualname__, {}))
    return {field.name: docs.get(field.name, field.metadata.get("doc", "")) for field in fields(config)}


def find_summary(thing: object) -> str:
    """The first paragraph of a docstring, on one line. A dataclass's generated signature does not count."""
    text = inspect.getdoc(thing) or ""
    if isinstance(thing, type) and text.startswith(f"{thing.__name__}("):
        return ""
    return " ".join(text.split("\n\n")[0].split())


@functools.cache
def _read_module_docs(module: str) -> dict[str, dict[str, str]]:
    """Class qualname -> field -> description, for every class in a module; empty where there is no source."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file or not file.endswith(".py"):
        return {}
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    docs: dict[str, dict[str, str]] = {}
    _collect(tree.body, "", docs)
    return docs


def _collect(body: list[ast.stmt], prefix: str, docs: dict[str, dict[str, str]]) -> None:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            docs[prefix + statement.name] = _read_class(statement)
            _collect(statement.body, f"{prefix}{statement.name}.", docs)
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            _collect(statement.body, f"{prefix}{statement.name}.<locals>.", docs)


def _read_class(definition: ast.ClassDef) -> dict[str, str]:
    found = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = " ".join(following.value.value.split())
    return found
