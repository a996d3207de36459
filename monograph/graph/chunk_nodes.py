"""The same step captured for one chunk of a micro-batch, node by node next to the capture of the whole.

A chunk's graph cannot be guessed from the whole one's: sizes are folded into constants. So the step is captured a
second time with a chunk's shapes, and every node of a module that is to be chunked refers to its chunk node: the
constants that differ and the values it has there. Only these modules have to agree, op by op; the rest of the step may
differ.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.fx import Node

from monograph.annotate import Direction
from monograph.errors import ConfigError
from monograph.graph.query import is_compute, value_of
from monograph.graph.sources import source_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of

_KEY = "monograph_twin"


@dataclass(frozen=True)
class ChunkNode:
    """What a node is in the capture of one chunk."""

    root: str
    """The module that is cut, by its path."""
    leaves: int
    """How many arguments there were, lists counted by their items."""
    constants: dict[int, Any] = field(default_factory=dict)
    """Place among the arguments -> the chunk's constant, where it is another one."""
    operands: dict[int, Any] = field(default_factory=dict)
    """Place among the arguments -> the chunk's value of the argument."""
    values: tuple[Any, ...] = ()
    """What the node yields: for every chunk if sizes depend on data, else once for all."""


def find_chunk_node(node: Node) -> ChunkNode | None:
    """A node's chunk node; copies of a node, as recomputation makes them, have the same one."""
    return node.meta.get(_KEY)


def forget_chunk_nodes(graph: StepGraph) -> None:
    """Once the graph is cut, chunk nodes only hold memory."""
    for node in graph.nodes:
        node.meta.pop(_KEY, None)


def is_inside(path: str, root: str) -> bool:
    """Whether a module is the root or a part of it."""
    return path == root or path.startswith(f"{root}.")


def pair_captures(graph: StepGraph, chunks: Sequence[StepGraph], roots: Sequence[str]) -> None:
    """Give every node of the roots its chunk node; a module that is captured differently for a chunk is an error."""
    for direction in Direction:
        whole = _find_regions(graph, roots, direction)
        parts = [_find_regions(chunk, roots, direction) for chunk in chunks]
        for root in roots:
            _pair_region(root, whole[root], [part[root] for part in parts])


def _find_regions(graph: StepGraph, roots: Sequence[str], direction: Direction) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {root: [] for root in roots}
    for node in graph.nodes:
        tag = tag_of(node)
        if is_compute(node) and tag.direction is direction:
            root = next((root for root in roots if is_inside(tag.path, root)), None)
            if root is not None:
                found[root].append(node)
    return found


def _pair_region(root: str, whole: Sequence[Node], parts: Sequence[Sequence[Node]]) -> None:
    indices = {node: index for index, node in enumerate(whole)}
    for part in parts:
        inside = {node: index for index, node in enumerate(part)}
        for node, other in zip(whole, part, strict=False):
            if not _is_same_op(node, other, indices, inside):
                raise _refuse(root, node, other)
        if len(whole) != len(part):
            longer = whole if len(whole) > len(part) else part
            raise _refuse(root, longer[min(len(whole), len(part))], None)
    for index, node in enumerate(whole):
        node.meta[_KEY] = _make_chunk_node(root, node, [part[index] for part in parts])


def _is_same_op(node: Node, other: Node, indices: dict[Node, int], inside: dict[Node, int]) -> bool:
    """Same op, same kinds of arguments, and the same ones where they come from inside of the module."""
    ours, theirs = list(leaves_of(node)), list(leaves_of(other))
    if node.target is not other.target or len(ours) != len(theirs):
        return False
    for one, two in zip(ours, theirs, strict=True):
        if isinstance(one, Node) != isinstance(two, Node):
            return False
        if isinstance(one, Node) and indices.get(one) != inside.get(two):
            return False
    return True


def _make_chunk_node(root: str, node: Node, others: Sequence[Node]) -> ChunkNode:
    pairs = list(enumerate(zip(leaves_of(node), leaves_of(others[0]), strict=True)))
    return ChunkNode(
        root=root,
        leaves=len(pairs),
        constants={index: two for index, (one, two) in pairs if not isinstance(one, Node) and one != two},
        operands={index: value_of(two) for index, (_, two) in pairs if isinstance(two, Node)},
        values=tuple(value_of(other) for other in others),
    )


def _refuse(root: str, node: Node, other: Node | None) -> ConfigError:
    def show(each: Node) -> str:
        line = source_of(each)
        return f"{each.target} in {tag_of(each).path}{f' ({line})' if line else ''}"

    found = (
        f"{show(node)} for the whole and {show(other)} for a chunk" if other is not None else f"only once: {show(node)}"
    )
    return ConfigError(
        f"{root} is captured differently for a chunk and for the whole micro-batch",
        why=f"the first op that differs is {found}: what the module does depends on the size of its input",
        do="--compile.expert_overlap.strategy trace, which calls the module for every chunk; or make chunks larger",
    )


def leaves_of(node: Node) -> Iterator[Any]:
    """All arguments, those in lists one by one."""
    found: list[Any] = []
    map_leaves((node.args, node.kwargs), lambda _place, value: found.append(value))
    yield from found


def map_leaves(value: Any, change: Callable[[int, Any], Any]) -> Any:
    """The same arguments with every leaf changed; `change` gets a leaf's place and the leaf."""
    index = -1

    def visit(each: Any) -> Any:
        nonlocal index
        if isinstance(each, tuple | list):
            return type(each)(visit(item) for item in each) if type(each) in (tuple, list) else [*map(visit, each)]
        if isinstance(each, dict):
            return {name: visit(item) for name, item in each.items()}
        if isinstance(each, slice):
            return slice(visit(each.start), visit(each.stop), visit(each.step))
        index += 1
        return change(index, each)

    return visit(value)


def find_chunked_dims(whole: Any, part: Any, count: int) -> list[int] | None:
    """The dims in which a chunk's value is smaller; None when the two cannot be parts of each other.

    Sizes that depend on data say nothing: such a value is made inside of a chunk, or it is the same for all.
    """
    if not isinstance(whole, Tensor) or not isinstance(part, Tensor):
        return []
    if whole.dim() != part.dim():
        return None
    dims = []
    for dim, (one, two) in enumerate(zip(whole.shape, part.shape, strict=True)):
        if isinstance(one, int) and isinstance(two, int) and one != two:
            if one != two * count:
                return None
            dims.append(dim)
    return dims
