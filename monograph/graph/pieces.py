"""Pieces of memory that a graph's values live in, and the ops that take over a piece because nothing else needs it.

In a graph values never change. A program is a copy of it that is only run, so there an op may write its result over an
argument that nothing reads any more, instead of copying it.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import Graph, Node

from monograph.graph.cast_weights import is_cached_cast, is_cached_float8, is_dense
from monograph.graph.host_copy import TO_HOST
from monograph.graph.query import find_storages, has_symbols, is_launch, is_op, value_of
from monograph.graph.tensor_meta import meta_of
from monograph.kernels.embedding_rows import ADD_EMBEDDING_ROWS, add_embedding_rows_

IN_PLACE: Mapping[Any, Callable[..., Any]] = {ADD_EMBEDDING_ROWS: add_embedding_rows_}
"""Op -> the same in place: it writes over its first argument, and returns it."""

Piece = tuple[Node, int]
"""A piece of memory: who made it, and which of its values it is."""
Owners = dict[Node, tuple[Piece, ...]]
"""For every node the pieces of memory its value lives in."""


def find_owners(graph: Graph) -> Owners:
    """The pieces of every node when a program runs, in which ops run in place."""
    owners = _find_own_pieces(graph)
    taken = {(node, 0): piece for node, piece in _find_taken(graph, owners).items()}
    if not taken:
        return owners

    def resolve(piece: Piece) -> Piece:
        while piece in taken:
            piece = taken[piece]
        return piece

    return {node: tuple(map(resolve, pieces)) for node, pieces in owners.items()}


def find_in_place(graph: Graph) -> set[Node]:
    """The nodes that can run in place."""
    return set(_find_taken(graph, _find_own_pieces(graph)))


def _find_own_pieces(graph: Graph) -> Owners:
    """The same if nothing ran in place."""
    owners: Owners = {}
    for node, root in find_storages(graph).items():
        if root is not node:
            owners[node] = owners[root]
        elif node.target is operator.getitem and isinstance(node.args[0], Node):
            owners[node] = (owners[node.args[0]][node.args[1]],)  # type: ignore[index]
        else:
            value = value_of(node)
            parts = len(value) if isinstance(value, (list, tuple)) else 1
            owners[node] = ((node, 0),) if parts == 1 else tuple((node, part) for part in range(parts))
    return owners


def _find_taken(graph: Graph, owners: Owners) -> dict[Node, Piece]:
    """The nodes that can run in place, each with the piece of memory that it takes over."""
    nodes = [node for node in graph.nodes if node.target in IN_PLACE and not node.kwargs]
    wanted = {piece for node in nodes for piece in owners[node.args[0]]}
    readers: dict[Piece, list[Node]] = {piece: [] for piece in wanted}
    for node in graph.nodes if wanted else ():
        for piece in wanted.intersection(piece for each in node.all_input_nodes for piece in owners[each]):
            readers[piece].append(node)
    found = {}
    for node in nodes:
        first, *more = owners[node.args[0]]
        others = {piece for each in node.args[1:] for piece in owners[each]}
        if not more and first not in others and _is_free(node, first, readers[first]):
            found[node] = first
    return found


def _is_free(node: Node, piece: Piece, readers: list[Node]) -> bool:
    """Whether a step makes a piece of memory itself, and nothing else can read it when this node runs or later.

    Collectives and copies to the host read beside compute; casts of weights may be computed once for several steps.
    Only the schema of an op tells which results are views of its arguments: compiled code may return views too.
    """
    (maker, _), form = piece, meta_of(value_of(node.args[0]))  # type: ignore[arg-type]
    if not is_op(maker.target) or is_launch(maker) or is_cached_cast(maker) or is_cached_float8(maker):
        return False
    if any(node < each or is_launch(each) or each.target is TO_HOST or not _says_memory(each) for each in readers):
        return False
    return not has_symbols(form) and is_dense(form)


def _says_memory(node: Node) -> bool:
    return is_op(node.target) or node.target is operator.getitem
