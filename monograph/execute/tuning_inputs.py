"""Tensors to tune kernels with: random, of the forms that a step's calls have; integers as a step would have them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from monograph.execute.custom_kernels import Argument
from monograph.graph.tensor_meta import TensorMeta

_DOCUMENTS = 4
"""Of a packed sequence."""


def make_arguments(names: Sequence[str], args: Sequence[Argument], device: torch.device) -> list[Any]:
    """Arguments of an op; an argument's name decides what its integers mean. The same values each time."""
    generator = torch.Generator(device).manual_seed(0)
    forms = {name: arg for name, arg in zip(names, args, strict=True) if isinstance(arg, TensorMeta)}
    return [
        make_tensor(name, forms, generator) if isinstance(arg, TensorMeta) else arg
        for name, arg in zip(names, args, strict=True)
    ]


def make_tensor(name: str, forms: Mapping[str, TensorMeta], generator: torch.Generator) -> Tensor:
    """One tensor with its strides: integers, or normally distributed."""
    form = forms[name]
    if not form.dtype.is_floating_point:
        return make_integers(name, forms, generator).to(form.dtype)
    shape, strides = as_sizes(form.shape), as_sizes(form.strides)
    length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    values = torch.randn(max(length, 0), generator=generator, device=generator.device).to(form.dtype)
    return values.as_strided(shape, strides)


def make_integers(name: str, forms: Mapping[str, TensorMeta], generator: torch.Generator) -> Tensor:
    """Where experts' rows end, where rows lie, where documents end; else zeros, which every table has room for."""
    shape, device = as_sizes(forms[name].shape), generator.device
    if name == "ends":
        rows = as_sizes(next(iter(forms.values())).shape)[0]
        shares = torch.rand(shape, generator=generator, device=device) + 0.5
        ends = (shares.cumsum(0) / shares.sum() * rows).long()
        ends[-1:] = rows
        return ends
    if name in ("places", "order", "inverse"):
        return torch.randperm(torch.Size(shape).numel(), generator=generator, device=device).view(shape)
    if name == "segments":
        return make_segments(shape, as_sizes(forms["q"].shape)[1], as_sizes(forms["k"].shape)[1]).to(device)
    return torch.zeros(shape, dtype=torch.int64, device=device)


def make_segments(shape: Sequence[int], queries: int, keys: int) -> Tensor:
    """A table of documents of one length [batch, 2, documents + 1]; of one, where queries are a part of a sequence."""
    documents = min(_DOCUMENTS if queries == keys else 1, shape[-1] - 1)
    bounds = [torch.arange(shape[-1]).clamp(max=documents) * each // documents for each in (queries, keys)]
    return torch.stack(bounds).expand(shape)


def as_sizes(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes that the data does not decide."""
    assert all(isinstance(size, int) for size in sizes), sizes
    return tuple(sizes)
