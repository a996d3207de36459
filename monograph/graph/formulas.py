"""unbacked symbols, as graph files write them: `u0 + 2*u1`, `64*Max(1, u0)`.

To check a graph without running it, every symbol gets an example number. Where a value is split into parts, the parts'
numbers add up to the value's, as they will when the step runs.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from monograph.compat.ops import ALL_TO_ALL, ATEN
from monograph.graph.encode import GraphFileError
from monograph.graph.query import value_of
from monograph.graph.tensor_meta import FormSize, SymIntMeta, TensorMeta

_TOKEN = re.compile(r"\s*([a-z]{1,4}\d{1,9}|\d{1,18}|Max|Min|[-+*(),])")
_MAX_DEPTH = 8
"""Parentheses within parentheses."""
_MANY = 1 << 20
"""Large enough to see how fast a size grows with a symbol."""


@dataclass(frozen=True)
class Formula:
    """A sum of products of numbers, symbols, `Max` and `Min`."""

    terms: tuple[tuple[int, tuple[Any, ...]], ...]
    """Of each product the sign and the factors: a number, a symbol, or ("Max", formulas)."""

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols in it."""
        found: set[str] = set()
        for _, factors in self.terms:
            for factor in factors:
                if isinstance(factor, str):
                    found.add(factor)
                elif isinstance(factor, tuple):
                    found |= {symbol for part in factor[1] for symbol in part.symbols}
        return frozenset(found)

    def evaluate(self, numbers: Mapping[str, int]) -> int:
        """The size, where the symbols have these numbers."""
        total = 0
        for sign, factors in self.terms:
            product = sign
            for factor in factors:
                product *= _evaluate(factor, numbers)
            total += product
        return total

    def growth(self) -> int:
        """By how much it grows, at most, when one of the symbols grows by one."""
        none = dict.fromkeys(self.symbols, 0)
        return max((-(-abs(self.evaluate({**none, each: _MANY})) // _MANY) for each in none), default=0)


def _evaluate(factor: Any, numbers: Mapping[str, int]) -> int:
    if isinstance(factor, tuple):
        values = [part.evaluate(numbers) for part in factor[1]]
        return max(values) if factor[0] == "Max" else min(values)
    return numbers[factor] if isinstance(factor, str) else factor


@functools.lru_cache(maxsize=4096)
def parse_formula(size: FormSize) -> Formula:
    """A size as a graph file writes it."""
    if isinstance(size, int):
        return Formula(((1, (size,)),))
    tokens, end = list[str](), 0
    while end < len(size.rstrip()):
        found = _TOKEN.match(size, end)
        if found is None:
            raise GraphFileError(f"a size is {size!r:.80}")
        tokens.append(found[1])
        end = found.end()
    try:
        formula, rest = _read_sum(tokens, 0, 0)
    except IndexError:
        rest = -1
    if rest != len(tokens) or not tokens:
        raise GraphFileError(f"a size is {size!r:.80}, which is not a formula")
    return formula


def _read_sum(tokens: Sequence[str], index: int, depth: int) -> tuple[Formula, int]:
    """The sum that begins at a place, and the place behind it."""
    terms: list[tuple[int, tuple[Any, ...]]] = []
    while index < len(tokens) and (not terms or tokens[index] in "+-"):
        sign = -1 if tokens[index] == "-" else 1
        index += tokens[index] in "+-"
        factor, index = _read_factor(tokens, index, depth)
        factors = [factor]
        while index < len(tokens) and tokens[index] == "*":
            factor, index = _read_factor(tokens, index + 1, depth)
            factors.append(factor)
        if sum(not isinstance(factor, int) for factor in factors) > 1:
            raise GraphFileError("a size is a product of two sizes")
        terms.append((sign, tuple(factors)))
    return Formula(tuple(terms)), index


def _read_factor(tokens: Sequence[str], index: int, depth: int) -> tuple[Any, int]:
    token = tokens[index]
    if token.isdigit():
        return int(token), index + 1
    if token not in ("Max", "Min", "("):
        if not token[0].isalpha():
            raise IndexError
        return token, index + 1
    index += token != "("
    parts = []
    while tokens[index] in (",", "(") and depth < _MAX_DEPTH:
        part, index = _read_sum(tokens, index + 1, depth + 1)
        parts.append(part)
    if tokens[index] != ")" or not parts or (token == "(" and len(parts) > 1):
        raise IndexError
    return (token, tuple(parts)), index + 1


class Numbers:
    """Example numbers for the symbols of one graph."""

    def __init__(self, nodes: Iterable[Node], *, first: int, step: int) -> None:
        """Symbols that nothing decides are `first`, `first + step`, ..."""
        self.found: dict[str, int] = {}
        self._next, self._step = first, step
        for node in nodes:
            if node.target is ALL_TO_ALL:
                self._divide(_rows(node.args[0], 0), node.args[2])
            elif node.target is ATEN.split_with_sizes.default:
                dim = node.args[2] if len(node.args) > 2 else 0
                self._divide(_rows(node.args[0], dim), node.args[1])

    def of(self, size: FormSize) -> int:
        """A size as a number."""
        if isinstance(size, int):
            return size
        formula = parse_formula(size)
        for symbol in sorted(formula.symbols, key=lambda each: (len(each), each)):
            self._choose(symbol)
        return formula.evaluate(self.found)

    def _choose(self, symbol: str) -> None:
        if symbol not in self.found:
            self.found[symbol] = self._next
            self._next += self._step

    def _divide(self, total: FormSize | None, parts: Any) -> None:
        """Give the parts that have no number yet equal shares of what the others leave of the total."""
        if total is None or not isinstance(parts, Sequence):
            return
        rest, open_symbols = self.of(total), list[str]()
        for size in map(_size_of, parts):
            if isinstance(size, str) and {size} == parse_formula(size).symbols - self.found.keys():
                open_symbols += [size] if size not in open_symbols else []
            elif size is not None:
                rest -= self.of(size)
        for index, symbol in enumerate(open_symbols):
            share = max(rest, 0) // (len(open_symbols) - index)
            self.found[symbol] = share
            rest -= share


def _rows(value: Any, dim: Any) -> FormSize | None:
    form = value_of(value) if isinstance(value, Node) else None
    is_there = isinstance(form, TensorMeta) and type(dim) is int and -len(form.shape) <= dim < len(form.shape)
    return form.shape[dim] if isinstance(form, TensorMeta) and is_there else None


def _size_of(part: Any) -> FormSize | None:
    if type(part) is int:
        return part
    form = value_of(part) if isinstance(part, Node) else None
    return form.formula if isinstance(form, SymIntMeta) else None
