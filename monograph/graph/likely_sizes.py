"""Likely values of unbacked symbols: how many rows the router sends where.

They are unknown without data, and an estimate that took them for nothing would miss most of a mixture of experts.
The guess is even routing: where rows are cut into parts of unknown sizes, the parts are taken to be equal.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from monograph.compat.capture import expression_of
from monograph.compat.ops import ALL_TO_ALL, ATEN
from monograph.graph.layouts import find_symbols
from monograph.graph.query import value_of

_LISTS = (list, tuple)


class LikelySizes:
    """Sizes, elements and bytes of the values of one graph, with even routing where the data decides."""

    def __init__(self, graph: Graph, known: dict[Node, list[int]] | None = None) -> None:
        """`known` remembers bytes that no symbol decides, from one look at a graph to the next."""
        self._found: dict[Any, int] = {}
        self._known = {} if known is None else known
        for node in graph.nodes:
            if node.target is ALL_TO_ALL:
                rows, received, sent = node.args[:3]
                total = self.of(value_of(rows).shape[0])
                self._share(sent, total)
                self._share(received, total)
            elif node.target is ATEN.split_with_sizes.default:
                dim = node.args[2] if len(node.args) > 2 else 0
                self._share(node.args[1], self.of(value_of(node.args[0]).shape[dim]))

    def _share(self, parts: Sequence[Any], total: int) -> None:
        """Take the parts of `total` whose sizes are still unknown to be equal."""
        for part in parts:
            value = value_of(part) if isinstance(part, Node) else part
            if isinstance(value, torch.SymInt) and expression_of(value).is_Symbol:
                self._found.setdefault(expression_of(value), max(1, total // len(parts)))

    def of(self, size: int | torch.SymInt) -> int:
        """A size as a number; a symbol that no cut explains counts as one."""
        if isinstance(size, int):
            return size
        return self._evaluate(expression_of(size))

    def _evaluate(self, expression: Any) -> int:
        """Sums of symbols, the usual case, are added up here: with many ranks they have many terms."""
        if expression not in self._found:
            if expression.is_Add:
                self._found[expression] = sum(self._evaluate(term) for term in expression.args)
            elif expression.is_Symbol:
                return 1  # not remembered: a later cut may explain it
            else:
                known = {symbol: self._evaluate(symbol) for symbol in expression.free_symbols}
                self._found[expression] = int(expression.subs(known))
        return self._found[expression]

    def shape(self, value: Tensor) -> tuple[int, ...]:
        """A tensor's sizes as numbers."""
        return tuple(size if isinstance(size, int) else self.of(size) for size in value.shape)

    def elements(self, value: Tensor) -> int:
        """How many numbers a tensor has."""
        count = 1
        for size in value.shape:
            count *= size if isinstance(size, int) else self.of(size)
        return count

    def bytes_of(self, node: Node, part: int) -> int:
        """Bytes of one of a node's values."""
        found = self._known.get(node)
        if found is None:
            value = value_of(node)
            values = value if isinstance(value, _LISTS) else [value]
            found = [self.bytes(each) for each in values]
            if not find_symbols(values):
                self._known[node] = found
        return found[part]

    def bytes(self, value: Any) -> int:
        """Bytes of a tensor or of all tensors in a list; nothing for numbers on the host."""
        if isinstance(value, Tensor):
            return self.elements(value) * value.element_size()
        if isinstance(value, _LISTS):
            return sum(self.bytes(item) for item in value)
        return 0
