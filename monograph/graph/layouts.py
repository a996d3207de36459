"""What can be said of values without their numbers: dtypes, sizes, strides, and the symbols in them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

Layout = Any
"""A value as something that can be compared: tensors as `TensorLayout`, lists as tuples, numbers with their type."""


class TensorLayout(NamedTuple):
    """All of a tensor but its numbers; sizes known only at run time are expressions."""

    dtype: torch.dtype
    device: str
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    """0 along dimensions of size 1: no value is read with it, and ops differ in what they say there."""


def find_layout(value: Any) -> Layout:
    """What can be said of a value without its numbers."""
    if isinstance(value, Tensor):
        shape, stride = (tuple(map(_expression, sizes)) for sizes in (value.shape, value.stride()))
        read = tuple(0 if size == 1 else each for size, each in zip(shape, stride, strict=True))
        return TensorLayout(value.dtype, value.device.type, shape, read)
    if isinstance(value, (list, tuple)):
        return tuple(map(find_layout, value))
    return (int, value.node.expr) if isinstance(value, torch.SymInt) else (type(value), value)


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def find_key(*values: Any) -> Any:
    """The layouts of some values as a key, whatever their symbols are called; None where nothing can tell."""
    key = find_layout(values)
    if find_symbols(values):
        key = number_symbols(key)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def find_symbols(value: Any) -> frozenset[Any]:
    """The sizes known only at run time that a value is made of."""
    if isinstance(value, Tensor):
        value = [size for size in value.shape if type(size) is not int]
    if isinstance(value, (list, tuple)):
        return frozenset().union(*(find_symbols(item) for item in value)) if value else frozenset()
    return frozenset(value.node.expr.free_symbols) if isinstance(value, torch.SymInt) else frozenset()


def number_symbols(layout: Layout) -> Layout:
    """The layout with numbers for symbols, by first appearance: equal for two that differ in names only."""
    numbers: dict[Any, Any] = {}

    def renamed(part: Layout) -> Layout:
        if isinstance(part, tuple):
            return tuple(map(renamed, part))
        if not getattr(part, "free_symbols", None):
            return part
        for symbol in sorted(part.free_symbols - numbers.keys(), key=lambda each: (len(each.name), each.name)):
            numbers[symbol] = type(symbol)(f"n{len(numbers)}")
        return part.xreplace(numbers)

    return renamed(layout)


def rename_symbols(layout: Layout, names: Mapping[Any, Any]) -> Layout:
    """The layout with other symbols."""
    if isinstance(layout, tuple):
        return tuple(rename_symbols(each, names) for each in layout)
    return layout.xreplace(names) if hasattr(layout, "xreplace") else layout


def name_layout(layout: Layout) -> str:
    """A layout in words."""
    if isinstance(layout, TensorLayout):
        dtype = str(layout.dtype).removeprefix("torch.")
        return f"{dtype}{list(layout.shape)} with strides {list(layout.stride)} on {layout.device}"
    return ", ".join(name_layout(each) for each in layout) if isinstance(layout, tuple) else str(layout)
