"""The shapes that some operators yield, without asking torch.

Collectives and copies to the host would do what they are made for. Others torch runs in Python on the meta device, and
imports its compiler with the first of them: half a second of every start from an artifact. All other operators are
asked on the meta device itself.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, ATEN, REDUCE_SCATTER, WAIT_TENSOR
from monograph.graph.host_copy import FROM_HOST, TO_HOST, WAIT_COPY

_META = torch.device("meta")


def find_rule(target: Any) -> Callable[..., Tensor] | None:
    """What computes an operator's result from its arguments, as tensors without memory; None: ask torch."""
    rule = _RULES.get(target)
    if rule is None and (torch.Tag.pointwise in target.tags or target is ATEN.floor_divide.default):
        return lambda *args, **kwargs: _pointwise(target, args, kwargs)
    return rule


def _pointwise(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """The shape that all arguments broadcast to, and the dtype of the same operator on nothing."""
    shapes = [tuple(value.shape) for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    few = [_shrink(value) for value in args]
    found = target(*few, **{name: _shrink(value) for name, value in kwargs.items()})
    return torch.empty(_broadcast(shapes), dtype=found.dtype, device=_META)


def _shrink(value: Any) -> Any:
    """A tensor without elements; one without dims stays, because it decides a dtype differently."""
    if not isinstance(value, Tensor):
        return value
    return torch.zeros(() if value.dim() == 0 else (0,), dtype=value.dtype)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> list[int]:
    count = max(map(len, shapes), default=0)
    sizes = [1] * count
    for shape in shapes:
        for index, size in enumerate(shape, count - len(shape)):
            if sizes[index] not in (size, 1) and size != 1:
                raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
            sizes[index] = size if sizes[index] == 1 else sizes[index]
    return sizes


def _cat(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    sizes = list(parts[0].shape)
    sizes[dim] = 0
    for part in parts:
        others = list(part.shape)
        others[dim] = 0
        if (part.dtype, len(others)) != (parts[0].dtype, len(sizes)) or others != sizes:
            raise ValueError("tensors that are concatenated differ in another dim or in dtype")
    sizes[dim] = sum(part.shape[dim] for part in parts)
    return torch.empty(sizes, dtype=parts[0].dtype, device=_META)


def _stack(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    if len({(tuple(part.shape), part.dtype) for part in parts}) != 1:
        raise ValueError("tensors that are stacked differ in shape or dtype")
    index = dim if dim >= 0 else dim + parts[0].dim() + 1
    sizes = list(parts[0].shape)
    if not 0 <= index <= len(sizes):
        raise ValueError(f"dim {dim} of a stack of {len(sizes)}-dimensional tensors")
    sizes.insert(index, len(parts))
    return torch.empty(sizes, dtype=parts[0].dtype, device=_META)


def _mean(value: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """A sum has the same shape, and a mean the dtype of what it sums."""
    if not (dtype or value.dtype).is_floating_point:
        raise ValueError(f"the mean of {dtype or value.dtype}")
    return ATEN.sum.dim_IntList(value, dim, keepdim, dtype=dtype)


def _tril(value: Tensor, diagonal: int = 0) -> Tensor:
    if value.dim() < 2:
        raise ValueError("a triangle of fewer than two dims")
    return torch.empty_like(value)


def _log_softmax(value: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if half_to_float or not value.dtype.is_floating_point or not -value.dim() <= dim < value.dim():
        raise ValueError(f"softmax of {value.dtype}{list(value.shape)} along dim {dim}")
    return torch.empty_like(value)


def _safe_softmax(value: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    if dtype not in (None, value.dtype):
        raise ValueError(f"softmax of {value.dtype} as {dtype}")
    return _log_softmax(value, dim, False)


def _softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    if (
        grad.shape != output.shape
        or not grad.dtype == output.dtype == input_dtype
        or not -grad.dim() <= dim < grad.dim()
    ):
        raise ValueError("gradient and result of a softmax differ")
    return torch.empty_like(grad)


def _same(value: Tensor, *_: Any) -> Tensor:
    return value


def _all_gather(value: Tensor, size: int, _group: str) -> Tensor:
    return value.new_empty((value.shape[0] * size, *value.shape[1:]))


def _reduce_scatter(value: Tensor, _operation: str, size: int, _group: str) -> Tensor:
    if value.shape[0] % size:
        raise ValueError(f"{value.shape[0]} rows are scattered over {size} ranks")
    return value.new_empty((value.shape[0] // size, *value.shape[1:]))


def _all_to_all(value: Tensor, received: Sequence[int], sent: Sequence[int], _group: str) -> Tensor:
    if sum(sent) != value.shape[0] or min((*received, *sent), default=0) < 0:
        raise ValueError(f"{value.shape[0]} rows are sent in parts of {sum(sent)}")
    return value.new_empty((sum(received), *value.shape[1:]))


_RULES: Mapping[Any, Callable[..., Tensor]] = {
    ALL_GATHER: _all_gather,
    REDUCE_SCATTER: _reduce_scatter,
    ALL_TO_ALL: _all_to_all,
    **dict.fromkeys((ALL_REDUCE, WAIT_TENSOR, TO_HOST, FROM_HOST, WAIT_COPY), _same),
    ATEN.cat.default: _cat,
    ATEN.stack.default: _stack,
    ATEN.mean.dim: _mean,
    ATEN.tril.default: _tril,
    ATEN._log_softmax.default: _log_softmax,
    ATEN._safe_softmax.default: _safe_softmax,
    ATEN._softmax_backward_data.default: _softmax_backward,
}
