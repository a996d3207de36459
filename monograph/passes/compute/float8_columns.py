"""Casts by rows that find the largest magnitudes of columns, for a later cast of the same value transposed."""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from monograph.compat.ops import ATEN
from monograph.graph.edit import call_before, redirect
from monograph.graph.query import find_storages, has_symbols, is_mutation, value_of
from monograph.graph.tags import tag_of
from monograph.kernels.float8 import FLOAT8_CAST
from monograph.kernels.float8_amax import FLOAT8_CAST_AMAX, FLOAT8_CAST_TRANSPOSED
from monograph.kernels.float8_norm import FLOAT8_ADD_NORM, FLOAT8_NORM
from monograph.kernels.norm import NORM_BACKWARD_RECOMPUTE
from monograph.passes.compute.fusions import VIEWS, find_source

E4M3 = torch.float8_e4m3fn
_BY_ROWS, _TRANSPOSED = (E4M3, True, False), (E4M3, True, True)
_SAME = (*VIEWS, ATEN.cat.default, ATEN._to_copy.default)
"""Ops that make of weights what casts read: the same in backward as in forward."""
FEWEST_ELEMENTS = 1 << 26
"""Of an fp32 matrix for a cast by rows to look at columns, too: that makes it slower on a GPU by about what a search of
its own takes. On an H200 both casts of [28672, 4096] take 0.378 instead of 0.424 ms in fp32, but 0.282 instead of 0.261
in bfloat16, and of [5632, 2048] 0.073 instead of 0.058."""
_NORMS = {FLOAT8_NORM: 2, FLOAT8_ADD_NORM: 3}
"""Norms that look at columns -> which result says what they found."""


@dataclass(frozen=True)
class KnownColumns:
    """A cast transposed, and what came by the same value before: a cast by rows, or a norm that wrote it in float8."""

    first: Node
    cast: Node


def is_large(value: Any) -> bool:
    """Whether looking at columns while casting rows takes less time than a search later; rows that the data counts are
    too few."""
    matrix = value_of(value)
    assert isinstance(matrix, torch.Tensor)
    return matrix.dtype == torch.float32 and not has_symbols(matrix) and matrix.numel() >= FEWEST_ELEMENTS


def plan_columns(graph: Graph, is_worth_it: Callable[[Any], bool] = is_large) -> list[KnownColumns]:
    """Every cast transposed of what a norm wrote, or of a value worth it that was cast by rows and is not mutated."""
    storages = find_storages(graph)
    written = {storages.get(each, each) for node in graph.nodes if is_mutation(node) for each in node.all_input_nodes}
    rows: dict[Any, Node] = {}
    found = []
    for node in graph.nodes:
        if node.target is not FLOAT8_CAST:
            continue
        key = key_of_value(node.args[0])
        if tuple(node.args[1:]) == _BY_ROWS and is_worth_it(node.args[0]):
            rows.setdefault(key, node)
        if tuple(node.args[1:]) == _TRANSPOSED:
            is_still = all(storages.get(each, each) not in written for each in list_sources(node.args[0]))
            first = (rows.get(key) if is_still else None) or find_norm(node)
            found += [KnownColumns(first, node)] if first is not None else []
    return found


def find_norm(cast: Node) -> Node | None:
    """The norm that wrote in float8 what its backward computes again for a cast."""
    part = find_source(cast.args[0])  # type: ignore[arg-type]
    back = part.args[0] if part.target is operator.getitem and part.args[1] == 2 else None
    if not isinstance(back, Node) or back.target is not NORM_BACKWARD_RECOMPUTE:
        return None
    rstd = back.args[3]
    norm = rstd.args[0] if isinstance(rstd, Node) and rstd.target is operator.getitem else None
    return norm if isinstance(norm, Node) and norm.target in _NORMS else None


def key_of_value(value: Any) -> Any:
    """Equal for values that are made of the same by the same ops."""
    if isinstance(value, list | tuple):
        return tuple(map(key_of_value, value))
    if not isinstance(value, Node):
        return str(value)
    if value.target in _SAME:
        return value.target, key_of_value(value.args), tuple((name, str(each)) for name, each in value.kwargs.items())
    return value


def list_sources(value: Any) -> Iterator[Node]:
    """What a value is made of."""
    for node in (value,) if isinstance(value, Node) else ():
        yield node
        for each in node.all_input_nodes if node.target in _SAME else ():
            yield from list_sources(each)


def apply_columns(graph: Graph, plan: Sequence[KnownColumns], made_by: str) -> None:
    """Let what comes first find what the cast has to know."""
    known: dict[Node, Node] = {}
    for each in plan:
        first, cast = each.first, each.cast
        if first not in known:
            tag = replace(tag_of(first), made_by=made_by)
            whole = first
            if first.target is FLOAT8_CAST:
                whole = call_before(graph, first, FLOAT8_CAST_AMAX, (first.args[0], E4M3), tag)
                redirect_parts(graph, first, whole, made_by)
            index = _NORMS.get(whole.target, 2)
            known[first] = call_before(graph, whole.next, operator.getitem, (whole, index), replace(tag, keep=True))
        tag = replace(tag_of(cast), made_by=made_by)
        new = call_before(graph, cast, FLOAT8_CAST_TRANSPOSED, (cast.args[0], known[first], E4M3), tag)
        redirect_parts(graph, cast, new, made_by)


def redirect_parts(graph: Graph, old: Node, new: Node, made_by: str, first: int = 0) -> None:
    """Let readers of an op's results read those of another, which begin at `first`."""
    for part in list(old.users):
        tag = replace(tag_of(part), made_by=made_by)
        index = first + part.args[1]  # type: ignore[operator]
        redirect(part, call_before(graph, new.next, operator.getitem, (new, index), tag))
