"""Values agree with ops: what a node is said to yield is what its op yields for its arguments.

Running every op again after every pass would cost more than the passes. A node that was checked carries a stamp of
what it was then; it is run again only when it, or a value it reads, has changed since.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from monograph.compat.capture import is_op, values_recomputed
from monograph.compat.ops import READ_SIZE
from monograph.graph.edit import fake_mode
from monograph.graph.layouts import Layout, find_key, find_layout, find_symbols, name_layout
from monograph.graph.query import makes_symbols, value_of
from monograph.graph.refuse import broken
from monograph.graph.step_graph import StepGraph

_KEY = "monograph_checked"


class Stamp(NamedTuple):
    """What a node was when its value was found right; compared by identity, which fx changes with every edit."""

    node: Node
    target: Any
    args: Any
    kwargs: Any
    value: Any
    symbols: frozenset[Any]
    """The sizes known only at run time that the value is made of."""


def trust_values(graph: StepGraph) -> None:
    """Stamp every node without running it: for a capture, whose values come from running the ops."""
    for node in graph.nodes:
        _stamp(node)


def check_values(graph: StepGraph, nodes: Sequence[Node]) -> None:
    """Run every changed node of these on shapes alone, and refuse a value that is not what its op yields.

    Equal ops on equal shapes that are said to yield the same run once: the blocks of a model are identical.
    """
    changed = {node for node in nodes if not _is_stamped(node)}
    unsure = [node for node in nodes if node in changed or not changed.isdisjoint(node.all_input_nodes)]
    if unsure:
        stamps = (node.meta.get(_KEY) for node in graph.nodes if node not in changed)
        symbols = frozenset().union(*(stamp.symbols for stamp in stamps if stamp is not None and stamp.symbols))
        right: set[Any] = set()
        with values_recomputed(fake_mode(graph.module.graph)), torch.no_grad():
            for node in unsure:
                _check_value(node, symbols, right)
                _stamp(node)


def check_symbols(nodes: Sequence[Node]) -> None:
    """A size known only at run time must have been read from data before it shapes anything."""
    known: set[Any] = set()
    for node in nodes:
        stamp: Stamp | None = node.meta.get(_KEY)
        symbols = find_symbols(value_of(node)) if stamp is None else stamp.symbols
        if not symbols:
            continue
        if makes_symbols(node):
            known |= symbols
        elif not symbols <= known:
            missing = ", ".join(sorted(str(symbol) for symbol in symbols - known))
            raise broken(
                node,
                f"a value has the size {missing}, which nothing before it has read from data",
                why="sizes come to the host once, by a node that everything they shape comes after",
            )


def _check_value(node: Node, known: frozenset[Any], right: set[Any]) -> None:
    if node.op == "call_function" and "val" not in node.meta:
        raise broken(node, "a node has no value", why="later passes need its shape", do="make nodes with graph/edit.py")
    if not _can_run(node):
        return
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), value_of)
    key = find_key(node.target, args, list(kwargs.items()), value_of(node))
    if key is not None and key in right:
        return
    try:
        found = find_layout(node.target(*args, **kwargs))  # type: ignore[operator]
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise broken(node, "an op does not accept its arguments", why=reason) from error
    said = find_layout(value_of(node))
    if said != found and not _is_same(said, found, known | find_symbols(value_of(node))):
        raise broken(
            node,
            f"a node's value is not what its op yields: recorded {name_layout(said)}, computed {name_layout(found)}",
            why="passes decide by the recorded shapes and dtypes, and the step would compute something else",
            do="after changing a node's op or arguments, set its value with edit.infer_value",
        )
    right.add(key)


def _can_run(node: Node) -> bool:
    """Reading a size would invent a new symbol; compiled regions and ops with sub-graphs speak for themselves."""
    if node.op != "call_function" or node.target is READ_SIZE:
        return False
    return is_op(node.target) or getattr(node.target, "__module__", "") in _PLAIN_MODULES


_PLAIN_MODULES = (operator.__name__, operator.add.__module__, math.__name__, torch.sym_max.__module__)
"""Arithmetic on sizes, and the parts of a list."""


def _is_same(said: Layout, found: Layout, known: frozenset[Any]) -> bool:
    """Equal for certain, or not comparable because running the op again gave its size a new name."""
    if said == found:
        return True
    if isinstance(said, tuple) and isinstance(found, tuple):
        pairs = zip(said, found, strict=False)
        return type(said) is type(found) and len(said) == len(found) and all(_is_same(*pair, known) for pair in pairs)
    return bool(getattr(found, "free_symbols", frozenset()) - known)


def _stamp(node: Node) -> None:
    value = value_of(node)
    node.meta[_KEY] = Stamp(node, node.target, node.args, node.kwargs, value, find_symbols(value))


def _is_stamped(node: Node) -> bool:
    stamp: Stamp | None = node.meta.get(_KEY)
    return (
        stamp is not None
        and stamp.node is node
        and stamp.target is node.target
        and stamp.args is node.args
        and stamp.kwargs is node.kwargs
        and stamp.value is node.meta.get("val")
    )
