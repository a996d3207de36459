"""Sizes that only a running step knows: symbols of a capture's mode, with what is known of them, and copies of both."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from monograph.compat.capture import expression_of

Renamed = Mapping[Any, Any]
"""Symbol -> the symbol in its place."""
_BINDINGS = "unbacked_bindings"


def copy_symbols(mode: Any, symbols: Iterable[Any]) -> dict[Any, Any]:
    """New symbols of which the same is known: their ranges, and what must hold between them when the step runs."""
    known = mode.shape_env
    with known.ignore_fresh_unbacked_symbols():
        renamed = {symbol: expression_of(known.create_unbacked_symint()) for symbol in symbols}
    for old, new in renamed.items():
        known.var_to_range[new] = known.var_to_range[old]
        found = known.deferred_runtime_asserts.get(old, [])
        known.deferred_runtime_asserts[new] = [replace(each, expr=each.expr.xreplace(renamed)) for each in found]
        known.num_deferred_runtime_asserts += len(found)
    return renamed


def has_other_names(mode: Any, symbols: Iterable[Any]) -> bool:
    """Whether a symbol was found to be another one's equal, or more is known of it than `copy_symbols` copies."""
    known = mode.shape_env
    others = {each for expression in known.replacements.values() for each in expression.free_symbols}
    return any(symbol in known.replacements or symbol in others or symbol in known.size_like for symbol in symbols)


def rename_size(mode: Any, size: Any, renamed: Renamed) -> Any:
    """A size in terms of other symbols."""
    if not isinstance(size, torch.SymInt):
        return size
    return mode.shape_env.create_symintnode(expression_of(size).xreplace(renamed), hint=None)


def rename_tensor(value: Tensor, renamed: Renamed) -> Tensor:
    """A fake tensor of such sizes, in memory of its own."""
    fake: Any = value
    mode = fake.fake_mode
    shape, stride = ([rename_size(mode, size, renamed) for size in sizes] for sizes in (value.shape, value.stride()))
    inner = torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")
    return FakeTensor(mode, inner, value.device)


def rename_bindings(meta: dict[str, Any], renamed: Renamed) -> None:
    """Where a node says which symbols it makes, let it name the others."""
    if meta.get(_BINDINGS):
        meta[_BINDINGS] = {renamed.get(symbol, symbol): where for symbol, where in meta[_BINDINGS].items()}
