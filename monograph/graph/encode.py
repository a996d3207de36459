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
from monograph.graph.tags import Tag
from monograph.graph.tensor_meta import ScalarMeta, SymIntMeta, TensorMeta

_KINDS: dict[str, dict[str, Any]] = {
    key: {name: getattr(torch, name) for name in names}
    for key, names in {
        "d": (
            *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
            *("bool", "uint8", "int8", "int16", "int32", "int64"),
            "uint64",  # the state of random numbers that attention on a GPU returns
        ),
        "layout": ("strided",),
        "format": ("contiguous_format", "preserve_format"),
    }.items()
}
"""Key -> name -> the constant of torch's: every dtype, layout and memory format that a graph file may name."""
_DEVICES = ("cpu", "cuda")
_MAX_DEPTH = 4
"""Lists within lists that an argument or value may have."""
_MAX_INT = (1 << 63) - 1


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
    for key, known in _KINDS.items():
        if any(value is constant for constant in known.values()):
            return {key: _name(value)}
    raise GraphFileError(f"a graph file cannot hold a {type(value).__name__} ({value!r:.80})")


def decode_argument(data: Any, nodes: Sequence[Node], depth: int = 0) -> Any:
    """What `encode_argument` wrote; values of nodes must come before their readers."""
    if depth > _MAX_DEPTH:
        raise GraphFileError(f"an argument has lists within lists, more than {_MAX_DEPTH} deep")
    if isinstance(data, list):
        return [decode_argument(item, nodes, depth + 1) for item in data]
    if type(data) is int and abs(data) > _MAX_INT:
        raise GraphFileError("an argument is an integer that does not fit into 64 bits")
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise GraphFileError(f"an argument has the keys {str(list(data))[:80]}")
    ((key, content),) = data.items()
    if key == "v":
        if type(content) is not int or not 0 <= content < len(nodes):
            raise GraphFileError(f"an argument is the value of node {content!r:.40}, which does not come before it")
        return nodes[content]
    if key == "t" and isinstance(content, list):
        return tuple(decode_argument(item, nodes, depth + 1) for item in content)
    if key == "f" and content in ("inf", "-inf", "nan"):
        return float(content)
    if key == "device" and content in _DEVICES:
        return torch.device(content)
    if key in _KINDS:
        return _find(content, key)
    raise GraphFileError(f"an argument is {str(data)[:80]}")


def encode_meta(form: Any) -> Any:
    """What a node yields."""
    if isinstance(form, TensorMeta):
        return [_name(form.dtype), list(form.shape), list(form.strides), form.device.type]
    if isinstance(form, SymIntMeta):
        return {"size": form.formula}
    if isinstance(form, ScalarMeta):
        return {"number": form.kind}
    return None if form is None else {"list": [encode_meta(item) for item in form]}


def decode_meta(data: Any, depth: int = 0) -> Any:
    """What `encode_meta` wrote."""
    if data is None:
        return None
    if isinstance(data, list) and len(data) == 4 and data[3] in _DEVICES:
        shape, strides = (_check_sizes(sizes) for sizes in data[1:3])
        if len(shape) == len(strides):
            return TensorMeta(_find(data[0], "d"), shape, strides, torch.device(data[3]))
    if isinstance(data, dict) and len(data) == 1 and depth < _MAX_DEPTH:
        ((key, content),) = data.items()
        if key == "list" and isinstance(content, list):
            return [decode_meta(item, depth + 1) for item in content]
        if key in ("size", "number") and isinstance(content, str):
            return SymIntMeta(content) if key == "size" else ScalarMeta(content)
    raise GraphFileError(f"a value is {str(data)[:80]}")


def encode_tag(tag: Tag) -> dict[str, Any]:
    """A node's facts, without those that are as for every node."""
    default = Tag()
    fields = [field.name for field in dataclasses.fields(Tag)]
    return {name: value for name in fields if (value := getattr(tag, name)) != getattr(default, name)}


_TAG_KINDS: Mapping[str, type] = {
    "direction": Direction,
    "role": Role,
    "block": int,
    "chunk": int,
    **dict.fromkeys(("keep", "once", "uses_host"), bool),
}
"""What a fact about a node is; all others are texts."""


def decode_tag(data: Any) -> Tag:
    """What `encode_tag` wrote."""
    names = {field.name for field in dataclasses.fields(Tag)}
    if not isinstance(data, dict) or not set(data) <= names:
        raise GraphFileError(f"a node's tag is {str(data)[:80]}")
    return Tag(**{name: _decode_fact(name, value) for name, value in data.items()})


def _decode_fact(name: str, value: Any) -> Any:
    kind = _TAG_KINDS.get(name, str)
    try:
        found = kind(value) if kind in (Direction, Role) else value
    except ValueError:
        found = None
    if type(found) is not kind:
        raise GraphFileError(f"a node's tag has {name} {value!r:.80}, which is not {kind.__name__}")
    return found


def name_dtype(dtype: torch.dtype) -> str:
    """`float32`."""
    return _name(dtype)


def find_dtype(name: Any) -> torch.dtype:
    """The dtype of that name."""
    return _find(name, "d")


def _name(constant: Any) -> str:
    return str(constant).removeprefix("torch.")


def _find(name: Any, key: str) -> Any:
    found = _KINDS[key].get(name) if isinstance(name, str) else None
    if found is None:
        raise GraphFileError(f"{name!r:.40} is none of {', '.join(_KINDS[key])}")
    return found


def _check_sizes(sizes: Any) -> tuple[int | str, ...]:
    if not isinstance(sizes, list) or not all(map(_is_size, sizes)):
        raise GraphFileError(f"sizes are {str(sizes)[:80]}")
    return tuple(sizes)


def _is_size(size: Any) -> bool:
    return isinstance(size, str) or (type(size) is int and 0 <= size <= _MAX_INT)
