"""What a node yields, said in words: stands where a captured graph has a tensor without memory.

A graph that was read from a file has these. Nothing has to be computed, and no mode of torch's has to be on, to say
that a value is `float32[?, 64]`. A size that only a running step knows is kept as the text of its formula.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from monograph.compat.capture import expression_of

FormSize = int | str


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """The metadata of a tensor."""

    dtype: torch.dtype
    shape: tuple[FormSize, ...]
    strides: tuple[FormSize, ...]
    device: torch.device


@dataclass(frozen=True, slots=True)
class SymIntMeta:
    """Of a size that the data decides."""

    formula: str


@dataclass(frozen=True, slots=True)
class ScalarMeta:
    """Of any other number on the host."""

    kind: str


def meta_of(value: Any) -> Any:
    """The form of what a node yields; lists of values become lists of forms, None stays None."""
    if value is None or isinstance(value, TensorMeta | SymIntMeta | ScalarMeta):
        return value
    if isinstance(value, Tensor):
        return TensorMeta(value.dtype, _sizes(value.shape), _sizes(value.stride()), torch.device(value.device.type))
    if isinstance(value, list | tuple):
        return [meta_of(item) for item in value]
    if isinstance(value, torch.SymInt):
        return SymIntMeta(str(expression_of(value)))
    return ScalarMeta(type(value).__name__)


def _sizes(sizes: Any) -> tuple[FormSize, ...]:
    return tuple(size if isinstance(size, int) else str(expression_of(size)) for size in sizes)
