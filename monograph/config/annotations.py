"""What a field may hold: reading type annotations, checking values against them and saying them in words.

Python does not enforce annotations. A recipe that writes `steps="100"` would fail hours later or, worse, not at all; so
every value is compared with its annotation before anything starts, and the same knowledge words the error messages.
"""

import collections.abc
import enum
import functools
import math
import types
import typing
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from monograph.errors import ConfigError
from monograph.plurals import counted

_COMMAS = "commas separate them too"
Names = Annotated[tuple[str, ...], _COMMAS]
"""Several names: none has a comma, so that `a,b` is two of them. In other texts, such as paths, it is a letter."""
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "None"}
_MANY = {int: "whole numbers", float: "numbers", bool: "true/false values", str: "texts"}
_EXAMPLES = {int: "8", float: "3e-4", bool: "true", str: "text", type(None): "None"}
_SEQUENCES = (
    list,
    tuple,
    set,
    frozenset,
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_INT64 = range(-(1 << 63), 1 << 63)
"""Whole numbers that fit a tensor, a file and every library: longer ones end in an overflow somewhere."""


def find_annotations(config: type) -> dict[str, Any]:
    """The resolved annotation of every field of a Config class, inherited ones included."""
    return _read_annotations(config)


@functools.cache
def _read_annotations(config: type) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(config)
    except NameError as error:
        raise ConfigError(
            f"the annotations of {config.__module__}:{config.__qualname__} cannot be read: {error}",
            why="every type a Config mentions must be importable where the Config is defined",
        ) from None
    return {field.name: hints[field.name] for field in fields(config)}


def find_name_lists(config: type) -> frozenset[str]:
    """The fields of a Config class that hold `Names`."""
    return _read_name_lists(config)


@functools.cache
def _read_name_lists(config: type) -> frozenset[str]:
    hints = typing.get_type_hints(config, include_extras=True)
    return frozenset(name for name, hint in hints.items() if _COMMAS in getattr(hint, "__metadata__", ()))


def is_union(annotation: Any) -> bool:
    """Whether the annotation is `A | B` or `Optional[A]`, however it was written."""
    return get_origin(annotation) in (Union, types.UnionType)


def find_members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the annotation alone."""
    return get_args(annotation) if is_union(annotation) else (annotation,)


def find_container(annotation: Any) -> Any:
    """list, tuple, set, frozenset or dict when the annotation asks for that container, else None."""
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type):
        return None
    if origin in _MAPPINGS:
        return dict
    if origin in (tuple, set, frozenset):
        return origin
    return list if origin in _SEQUENCES else None


def find_element(annotation: Any, index: int) -> Any:
    """The annotation of one element of a sequence, or of one value of a mapping."""
    arguments = get_args(annotation)
    if find_container(annotation) is dict:
        return arguments[1] if len(arguments) == 2 else Any
    if find_container(annotation) is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return arguments[index] if index < len(arguments) else Any
    return arguments[0] if arguments else Any


def is_callable_type(annotation: Any) -> bool:
    """Whether the annotation asks for a function."""
    return (get_origin(annotation) or annotation) in (collections.abc.Callable, typing.Callable)


def is_valid(value: Any, annotation: Any) -> bool:
    """Whether a value is what its annotation promises. A whole number may stand for a number, nothing else bends.

    Numbers are finite and whole numbers fit 64 bits: no field means infinity or nan, and both spread silently.
    """
    if annotation is Any or isinstance(annotation, typing.TypeVar):
        return True
    if is_union(annotation):
        return any(is_valid(value, member) for member in get_args(annotation))
    if get_origin(annotation) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(annotation))
    if annotation is None or annotation is type(None):
        return value is None
    if annotation in (int, float):
        return isinstance(value, (int, annotation)) and not isinstance(value, bool) and not find_excess(value)
    if is_callable_type(annotation):
        return callable(value)
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type):
        return True
    if not isinstance(value, origin) or (isinstance(value, str) and origin is not str):
        return False
    return _has_valid_elements(value, annotation)


def find_excess(value: Any) -> str:
    """Why a number, or one inside a container, is out of range for every field; empty when none is."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{value} is not finite"
    if isinstance(value, int):
        return "" if value in _INT64 else "a whole number has at most 64 bits"
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return next((found for item in value if (found := find_excess(item))), "")
    return ""


def _has_valid_elements(value: Any, annotation: Any) -> bool:
    container, arguments = find_container(annotation), get_args(annotation)
    if container is None or not arguments:
        return True
    if container is dict:
        return all(is_valid(key, arguments[0]) and is_valid(item, arguments[1]) for key, item in value.items())
    if container is tuple and arguments[-1] is not Ellipsis and len(value) != len(arguments):
        return False
    return all(is_valid(item, find_element(annotation, index)) for index, item in enumerate(value))


def describe(annotation: Any) -> str:
    """The annotation in words, to follow "takes": "a whole number", "one of: auto, fused"."""
    if is_union(annotation):
        members = sorted(get_args(annotation), key=lambda member: member is type(None))
        return " or ".join(describe(member) for member in members)
    if get_origin(annotation) is Literal:
        choices = [str(choice) for choice in get_args(annotation)]
        return choices[0] if len(choices) == 1 else f"one of: {', '.join(choices)}"
    if is_callable_type(annotation):
        return "a function, written as package.module:function"
    container, arguments = find_container(annotation), get_args(annotation)
    if container is dict:
        return f"pairs of {_describe_many(arguments[0])} and {_describe_many(arguments[1])}" if arguments else "pairs"
    if container is tuple and arguments and arguments[-1] is not Ellipsis:
        return f"{counted(len(arguments), 'value')}: {', '.join(describe(argument) for argument in arguments)}"
    if container is not None:
        return f"a list of {_describe_many(arguments[0])}" if arguments else "a list"
    if annotation in _WORDS:
        return _WORDS[annotation]
    if isinstance(annotation, type) and annotation is not Any:
        if issubclass(annotation, enum.Enum):
            return f"one of: {', '.join(annotation.__members__)}"
        if issubclass(annotation, PurePath):
            return "a path"
        return f"a section ({annotation.__name__})" if is_dataclass(annotation) else f"a {annotation.__name__}"
    return "any value"


def _describe_many(annotation: Any) -> str:
    return _MANY.get(annotation) or f"values, each {describe(annotation)}"


def make_example(annotation: Any) -> str:
    """Something that could be written on the command line for this annotation."""
    member = next((each for each in find_members(annotation) if each is not type(None)), annotation)
    if get_origin(member) is Literal:
        return str(get_args(member)[0])
    if is_callable_type(member):
        return "package.module:function"
    container, arguments = find_container(member), get_args(member)
    if container is dict:
        return " ".join(make_example(argument) for argument in arguments) or "name value"
    if container is tuple and arguments and arguments[-1] is not Ellipsis:
        return " ".join(make_example(argument) for argument in arguments)
    if container is not None:
        return " ".join([make_example(arguments[0] if arguments else str)] * 2)
    if isinstance(member, type) and issubclass(member, enum.Enum):
        return next(iter(member.__members__))
    return _EXAMPLES.get(member, "value")


def name_type(annotation: Any) -> str:
    """The annotation as short text for tables: `int`, `auto|fused`, `list[int]`, `int | None`."""
    if is_union(annotation):
        return " | ".join(name_type(member) for member in get_args(annotation))
    if get_origin(annotation) is Literal:
        return "|".join(str(choice) for choice in get_args(annotation))
    if is_callable_type(annotation):
        return "function"
    if annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    name = getattr(get_origin(annotation) or annotation, "__name__", str(annotation))
    arguments = ", ".join(name_type(argument) for argument in get_args(annotation))
    return f"{name}[{arguments}]" if arguments else name
