"""Names of sizes that a block reads from data: what they are to the block, and other names for a copy of it."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import Node

from monograph.compat.symbols import (
    KnownSymbols,
    copy_symbols,
    find_symbol_constraints,
    rename_bindings,
    rename_size,
    rename_tensor,
)
from monograph.graph.edit import copy_value
from monograph.graph.layouts import find_layout, find_symbols, rename_symbols
from monograph.graph.query import makes_symbols, value_of
from monograph.parallel.shard import BlocksDiffer


def find_names(nodes: Iterable[Node]) -> list[Any]:
    """The symbols of these nodes in the order in which they are made, those of one node by number."""
    found: dict[Any, None] = {}
    for node in nodes:
        new = [symbol for symbol in find_symbols(value_of(node)) if symbol not in found]
        if new and not makes_symbols(node):
            raise BlocksDiffer(f"{node.name} has a size that another block has read from data")
        found |= dict.fromkeys(sorted(new, key=lambda symbol: (len(symbol.name), symbol.name)))
    return list(found)


class SymbolMap:
    """The symbols of one block, by number: what a value is whatever its symbols are called."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.symbols = find_names(nodes)
        self._numbers = {symbol: type(symbol)(f"n{index}") for index, symbol in enumerate(self.symbols)}

    def describe(self, value: Any) -> Any:
        """A value's layout in terms of numbers; a symbol of another block is as unlike as can be."""
        layout = find_layout(value)
        return rename_symbols(layout, self._numbers) if find_symbols(value) else layout

    def find_constraints(self, mode: Any) -> KnownSymbols:
        """What is known of them."""
        known = find_symbol_constraints(mode, self.symbols)
        if known is None:
            raise BlocksDiffer(f"more is known of {', '.join(map(str, self.symbols))} than can be copied")
        return known


class SymbolRenamer:
    """Another block's symbols in place of those of the block it is copied from."""

    def __init__(self, mode: Any, known: KnownSymbols) -> None:
        self.mode, self.renamed = mode, copy_symbols(mode, known)

    def apply(self, copy: Node, node: Node) -> None:
        """Give a copied node its value and metadata."""
        copy.meta = dict(node.meta)
        copy.meta["val"] = self.value(value_of(node))
        rename_bindings(copy.meta, self.renamed)

    def value(self, value: Any) -> Any:
        """The value with the other block's sizes, in memory of its own."""
        if not find_symbols(value):
            return copy_value(value)
        if isinstance(value, list | tuple):
            return type(value)(self.value(item) for item in value)
        return rename_tensor(value, self.renamed) if isinstance(value, Tensor) else self._size(value)

    def _size(self, size: Any) -> Any:
        return rename_size(self.mode, size, self.renamed)
