"""Arguments, values and tags of nodes as JSON, and back: plain data, so that reading a file runs nothing.

Plain JSON stands for itself; an object with one key says what JSON cannot: {"v": 12} is the value of node 12, {"d":
"float32"} a dtype. Whatever is not listed here cannot be written, and nothing else can be read.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from monograph.annotate import Direction, Role
from monograph.graph.forms import Form, NumberForm, SizeForm
from monograph.graph.tags import Tag

_KINDS: dict[str, type] = {"d": torch.dtype, "layout": torch.layout, "format": torch.memory_format}
"""Key -> type, of the constants that torch knows by name."""
_DEVICES = ("cpu", "cuda", "meta")


class GraphFileError(ValueError):
    """A graph cannot be written, or what was read is not one; the text says why."""


def encode_argument(value: Any, place_of: Callable[[Node], int]) -> Any:
    """One argument of a node."""
    if isinstance(value, Node):
        return {"v": place_of(value)}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"f": str(value)}
    if isinstance(value, list):
        return [encode_argument(item, place_of) for item in value]
    if isinstance(value, tuple):
        return {"t": [encode_argument(item, place_of) for item in value]}
    if isinstance(value, torch.device):
        return {"device": value.type}
    for key, kind in _KINDS.items():
        if isinstance(value, kind):
            return {key: _name(value)}
    raise GraphFileError(f"a graph file cannot hold a {type(value).__name__} ({value!r:.80})")


def decode_argument(data: Any, nodes: Sequence[Node]) -> Any:
    """What `encode_argument` wrote; values of nodes must come before their readers."""
    if isinstance(data, list):
        return [decode_argument(item, nodes) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise GraphFileError(f"an argument has the keys {sorted(data)}")
    ((key, content),) = data.items()
    if key == "v":
        if type(content) is not int or not 0 <= content < len(nodes):
            raise GraphFileError(f"an argument is the value of node {content!r}, which does not come before it")
        return nodes[content]
    if key == "t" and isinstance(content, list):
        return tuple(decode_argument(item, nodes) for item in content)
    if key == "f" and content in ("inf", "-inf", "nan"):
        return float(content)
    if key == "device" and content in _DEVICES:
        return torch.device(content)
    if key in _KINDS:
        return _find(content, _KINDS[key])
    raise GraphFileError(f"an argument is {str(data)[:80]}")


def encode_form(form: Any) -> Any:
    """What a node yields."""
    if isinstance(form, Form):
        return [_name(form.dtype), list(form.shape), list(form.strides), form.device.type]
    if isinstance(form, SizeForm):
        return {"size": form.formula}
    if isinstance(form, NumberForm):
        return {"number": form.kind}
    return None if form is None else {"list": [encode_form(item) for item in form]}


def decode_form(data: Any) -> Any:
    """What `encode_form` wrote."""
    if data is None:
        return None
    if isinstance(data, list) and len(data) == 4 and data[3] in _DEVICES:
        shape, strides = (_check_sizes(sizes) for sizes in data[1:3])
        return Form(_find(data[0], torch.dtype), shape, strides, torch.device(data[3]))
    if isinstance(data, dict) and len(data) == 1:
        ((key, content),) = data.items()
        if key == "list" and isinstance(content, list):
            return [decode_form(item) for item in content]
        if key in ("size", "number") and isinstance(content, str):
            return SizeForm(content) if key == "size" else NumberForm(content)
    raise GraphFileError(f"a value is {str(data)[:80]}")


def encode_tag(tag: Tag) -> dict[str, Any]:
    """A node's facts, without those that are as for every node."""
    default = Tag()
    fields = [field.name for field in dataclasses.fields(Tag)]
    return {name: value for name in fields if (value := getattr(tag, name)) != getattr(default, name)}


_DECODERS: Mapping[str, Callable[[Any], Any]] = {"direction": Direction, "role": Role}


def decode_tag(data: Any) -> Tag:
    """What `encode_tag` wrote."""
    names = {field.name for field in dataclasses.fields(Tag)}
    if not isinstance(data, dict) or not set(data) <= names:
        raise GraphFileError(f"a node's facts are {str(data)[:80]}")
    try:
        return Tag(**{name: _DECODERS.get(name, lambda value: value)(value) for name, value in data.items()})
    except ValueError as error:
        raise GraphFileError(str(error)) from None


def name_dtype(dtype: torch.dtype) -> str:
    """`float32`."""
    return _name(dtype)


def find_dtype(name: Any) -> torch.dtype:
    """The dtype of that name."""
    return _find(name, torch.dtype)


def _name(constant: Any) -> str:
    return str(constant).removeprefix("torch.")


def _find(name: Any, kind: type) -> Any:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, kind):
        raise GraphFileError(f"torch has no {kind.__name__} called {name!r}")
    return found


def _check_sizes(sizes: Any) -> tuple[int | str, ...]:
    if not isinstance(sizes, list) or not all(type(size) in (int, str) for size in sizes):
        raise GraphFileError(f"sizes are {str(sizes)[:80]}")
    return tuple(sizes)
