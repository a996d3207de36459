"""Command-line words to values. The only module that knows tyro.

tyro turns words into a value of an annotated type, unions and nested containers included. Added here: `true`/`1` for
booleans, `null` for None, functions by name, and lists written in one word, `'[1, 2]'`, as shells like them.
"""

import ast
import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, get_args

from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

from monograph.config.annotations import find_container, find_element, find_members, is_callable_type
from monograph.config.references import import_reference
from monograph.plurals import counted

_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_NOTHING = ("None", "none", "null")
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_RULES = ConstructorRegistry()


class UnparsableTypeError(Exception):
    """The annotation has no form that could be typed; such a field is set in a recipe only."""


def parse_words(words: Sequence[str], annotation: Any, *, has_names: bool = False) -> Any:
    """The value that `words` stand for; ValueError when they do not fit the annotation."""
    if len(words) == 1 and (containers := [each for each in find_members(annotation) if find_container(each)]):
        word = words[0].strip()
        if word and _CLOSING.get(word[0]) == word[-1]:
            return _fit_any(_read_literal(word), containers)
    if _is_plain_list(annotation, has_names=has_names):
        words = [part.strip() for word in words for part in word.split(",") if part.strip()]
    return _parse_with_tyro(words, annotation)


def _is_plain_list(annotation: Any, *, has_names: bool) -> bool:
    """Whether the value is a list of single values that commas may separate as well as spaces: none has a comma."""
    members = find_members(annotation)
    lists = [each for each in members if find_container(each) not in (None, dict)]
    elements = [element for each in lists for element in find_members(find_element(each, 0))]
    has_commas = not has_names and any(each in (str, Any) or _is_path(each) for each in elements)
    return bool(lists) and str not in members and not has_commas and not any(map(find_container, elements))


def _is_path(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, PurePath)


def is_nothing(words: Sequence[str]) -> bool:
    """Whether the words say None."""
    return len(words) == 1 and words[0] in _NOTHING


def takes_several_words(annotation: Any) -> bool:
    """Whether more than one word can follow the flag."""
    return _find_spec(annotation).nargs != 1


def _parse_with_tyro(words: Sequence[str], annotation: Any) -> Any:
    spec = _find_spec(annotation)
    allowed = (spec.nargs,) if isinstance(spec.nargs, int) else spec.nargs
    if allowed != "*" and len(words) not in allowed:
        raise ValueError(f"takes {' or '.join(map(str, allowed))} words, not {len(words)}")
    try:
        return spec.instance_from_str(list(words))
    except KeyError as error:  # tyro's answer to an unknown enum member
        raise ValueError(str(error)) from None


def _find_spec(annotation: Any) -> PrimitiveConstructorSpec[Any]:
    with _RULES:
        spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(annotation, set()))
    if isinstance(spec, UnsupportedTypeAnnotationError):
        raise UnparsableTypeError(str(annotation))
    return spec


def _read_literal(word: str) -> Any:
    """A list or dict in JSON, in Python, or with bare names: `[a, b]`."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(word)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    if word[0] == "{":
        raise ValueError(f"{word} is neither JSON nor Python")
    return [part.strip() for part in word[1:-1].split(",") if part.strip()]


def _fit_any(value: Any, annotations: Sequence[Any]) -> Any:
    for annotation in annotations:
        try:
            return _fit(value, annotation)
        except ValueError as error:
            reason = error
    raise reason


def _fit(value: Any, annotation: Any) -> Any:
    """A literal as the annotated type: containers are rebuilt here, everything inside them is read by tyro."""
    container = find_container(annotation)
    if container is None:
        members = [each for each in find_members(annotation) if find_container(each)]
        if isinstance(value, (list, tuple, dict)):
            if not members:
                raise ValueError(f"{value} is a container, not a single value")
            return _fit_any(value, members)
        return _parse_with_tyro([str(value)], annotation)
    arguments = get_args(annotation)
    if isinstance(value, dict) != (container is dict) or not isinstance(value, (list, tuple, dict)):
        raise ValueError(f"{value!r} is not a {container.__name__}")
    if isinstance(value, dict):
        key_type, value_type = arguments or (str, Any)
        return {_fit(key, key_type): _fit(item, value_type) for key, item in value.items()}
    if container is tuple and arguments and arguments[-1] is not Ellipsis and len(value) != len(arguments):
        raise ValueError(f"needs {counted(len(arguments), 'value')}, not {len(value)}")
    return container(_fit(item, find_element(annotation, index)) for index, item in enumerate(value))


@_RULES.primitive_rule
def _boolean_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if info.type is not bool:
        return None

    def read(words: list[str]) -> bool:
        if words[0].lower() not in _BOOLEANS:
            raise ValueError(f"{words[0]} is neither true nor false")
        return _BOOLEANS[words[0].lower()]

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="true|false",
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, bool),
        str_from_instance=lambda value: [str(value).lower()],
    )


@_RULES.primitive_rule
def _nothing_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if info.type is not type(None):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="None",
        instance_from_str=lambda words: None,
        is_instance=lambda value: value is None,
        str_from_instance=lambda value: ["None"],
        choices=_NOTHING,
    )


@_RULES.primitive_rule
def _function_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    if not is_callable_type(info.type):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="module:function",
        instance_from_str=lambda words: import_reference(words[0]),
        is_instance=callable,
        str_from_instance=lambda value: [f"{value.__module__}:{value.__qualname__}"],
    )
