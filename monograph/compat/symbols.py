"""unbacked symbols: symbols of a capture's mode, with what is known of them, and copies of both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from monograph.compat.capture import expression_of

Renamed = Mapping[Any, Any]
"""Symbol -> the symbol in its place."""
_BINDINGS = "unbacked_bindings"


class KnownSymbols(NamedTuple):
    """What a mode knows of some symbols."""

    ranges: dict[Any, Any]
    asserts: dict[Any, list[Any]]
    """What must hold when the step runs, by the last symbol it is about."""
    axioms: list[tuple[Any, Any]]
    """What may be taken for true or false."""


def find_symbol_constraints(mode: Any, symbols: Sequence[Any]) -> KnownSymbols | None:
    """All that is known of symbols that are about each other only; None where there is more than can be copied."""
    facts, own = mode.shape_env, set(symbols)
    equal = [*facts.replacements, *facts.replacements.values(), *facts.divisible, *facts.size_like]
    asserts = {symbol: list(facts.deferred_runtime_asserts.get(symbol, ())) for symbol in symbols}
    axioms = [pair for pair in facts.axioms.items() if not own.isdisjoint(pair[0].free_symbols)]
    about = [each.expr for found in asserts.values() for each in found] + [expression for expression, _ in axioms]
    is_more = any(not own.isdisjoint(each.free_symbols) for each in equal)
    if is_more or any(not own.issuperset(each.free_symbols) for each in about):
        return None
    return KnownSymbols({symbol: facts.var_to_range[symbol] for symbol in symbols}, asserts, axioms)


def copy_symbols(mode: Any, known: KnownSymbols) -> dict[Any, Any]:
    """New symbols of which the same is known."""
    facts = mode.shape_env
    with facts.ignore_fresh_unbacked_symbols():
        renamed = {symbol: expression_of(facts.create_unbacked_symint()) for symbol in known.ranges}
    for old, new in renamed.items():
        facts.var_to_range[new] = known.ranges[old]
        found = [replace(each, expr=each.expr.xreplace(renamed)) for each in known.asserts[old]]
        facts.deferred_runtime_asserts[new] = found
        facts.num_deferred_runtime_asserts += len(found)
    facts.axioms.update((each.xreplace(renamed), value.xreplace(renamed)) for each, value in known.axioms)
    return renamed


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
