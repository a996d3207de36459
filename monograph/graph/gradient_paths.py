"""Paths of parameters and gradients: through casts, views, packs and collectives, from end to end.

A parameter's flow starts at its input and ends where a module computes with it. A gradient's flow starts at the op
that makes it and ends at its output; on the way it may be moved, cast, summed and added to its like, nothing else.
Packs of several values are followed piece by piece, so that buckets keep their contents apart.
"""

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.fx import Node

from monograph.annotate import Direction, Role
from monograph.axes import Group
from monograph.compat.capture import is_op
from monograph.compat.ops import ATEN, UNSAFE_VIEW, WAIT_TENSOR
from monograph.graph.query import LAUNCHES, group_of, value_of
from monograph.graph.refuse import broken
from monograph.graph.tags import tag_of
from monograph.kernels.embedding_rows import ADD_EMBEDDING_ROWS
from monograph.kernels.float8_shards import FLOAT8_AMAX, FLOAT8_CAST_KNOWN
from monograph.kernels.wide import ADD_WIDE

SUMS = (ATEN.add.Tensor, ADD_WIDE)
"""Ops that add two gradients."""


class GradientPath(NamedTuple):
    """What is known of a value on its way."""

    slot: str = ""
    """The parameter it is, or is the gradient of; empty when no tag has said so yet."""
    groups: frozenset[str] = frozenset()
    """The groups it was gathered from, or summed over."""
    paths: frozenset[str] = frozenset()
    """The modules a gradient comes from."""
    is_gradient: bool = False
    is_known: bool = True
    """False behind a compiled region, which does not tell what it does."""


PathTuple = tuple[GradientPath, ...]
"""The flow of a value, or of each value in a pack."""
UNKNOWN = (GradientPath(is_known=False),)

SAME_RANKS = {
    Group.FSDP_SCATTER.value: Group.FSDP_GATHER.value,
    Group.EFSDP_SCATTER.value: Group.EFSDP_GATHER.value,
    Group.TP_GRADS.value: Group.TP.value,
    Group.EP_COUNTS.value: Group.EP.value,
    Group.EP_DISPATCH.value: Group.EP.value,
}
"""Groups of the same ranks with a communicator of their own: a sum over either is the same."""

_PACKS = frozenset({ATEN.cat.default, ATEN.stack.default})
_COPIES = frozenset(
    {
        operator.getitem,
        WAIT_TENSOR,
        UNSAFE_VIEW,
        ATEN.clone.default,
        ATEN._to_copy.default,
        ATEN.contiguous.default,
        ATEN.constant_pad_nd.default,
        ATEN.split_with_sizes_copy.default,
        ATEN._pin_memory.default,
    }
)
"""Ops that hand their first argument's numbers on in other memory, besides views."""
_OF_SHARDS = frozenset({FLOAT8_AMAX, FLOAT8_CAST_KNOWN})
"""What may be computed of a shard before shards are gathered: each result is made of the argument in its place."""
_OF_ALL_SHARDS = (Role.PARAM_ALL_GATHER, Role.PARAM_AMAX)
"""Collectives after which a module may compute with a parameter, or with its scale."""
_CUTS = frozenset({ATEN.slice.Tensor, ATEN.select.int, ATEN.as_strided.default})
"""Views of a part: which pieces of a pack they hold is not tracked."""


class Reader(NamedTuple):
    """A module that computes with a parameter."""

    node: Node
    parameter: GradientPath


@dataclass(frozen=True)
class GradientPaths:
    """What was found: everyone who computes with a parameter, and every value on its way."""

    readers: list[Reader]
    of: dict[Node, PathTuple]

    def of_gradient(self, node: Node) -> GradientPath:
        """A gradient's flow where it leaves the step; one that was never summed starts there."""
        pieces = self.of.get(node)
        return _join(pieces, node) if pieces else _start(node)


def ranks_of(group: str) -> str:
    """One name for all groups over the same ranks."""
    return SAME_RANKS.get(group, group)


def find_gradient_paths(nodes: Sequence[Node], states: dict[Node, str]) -> GradientPaths:
    """Follow every parameter from its input (`states` has its slot) and every gradient from where it is made."""
    flows = GradientPaths(readers=[], of={node: (GradientPath(slot=slot),) for node, slot in states.items()})
    of = flows.of
    for node in nodes:
        if node.op == "call_module":
            of[node] = UNKNOWN
        elif node.op == "call_function":
            found = None if _is_ordinary(node, of) else _follow(node, of, flows.readers)
            if found:
                of[node] = _name(node, found)
            elif tag_of(node).gradient_of:
                of[node] = (_start(node),)
    return flows


def _is_ordinary(node: Node, of: dict[Node, PathTuple]) -> bool:
    """Whether nothing that is followed comes in, and nothing starts here: most nodes."""
    if is_value_preserving(node.target):
        return node.args[0] not in of
    return not _may_start(node.target) and of.keys().isdisjoint(node.all_input_nodes)


def _follow(node: Node, of: dict[Node, PathTuple], readers: list[Reader]) -> PathTuple | None:
    """The flow of a node's value from the flows of its arguments; None for ordinary compute."""
    target = node.target
    if target in LAUNCHES:
        role = tag_of(node).role
        if role is Role.GRAD_REDUCE_SCATTER or role in _OF_ALL_SHARDS or _is_gradient(of.get(node.args[0])):  # type: ignore[arg-type]
            return _transfer(node, of)
    elif is_value_preserving(target):
        return _move(node, of)
    elif target in _OF_SHARDS:
        return tuple(_join(of.get(each) or (GradientPath(),), node) for each in node.all_input_nodes)
    elif target in _PACKS:
        parts: Any = node.args[0]
        if any(each in of for each in parts) or tag_of(node).direction is Direction.BACKWARD:
            return tuple(_join(of.get(each) or (_start(each),), node) for each in parts)
    elif target in SUMS and any(_is_gradient(of.get(each)) for each in node.all_input_nodes):
        return _add(node, [of.get(each) or (_start(each),) for each in node.args[:2]])  # type: ignore[arg-type]
    elif target is ADD_EMBEDDING_ROWS and _is_gradient(of.get(node.args[0])):  # type: ignore[arg-type]
        return _add(node, [of[node.args[0]], (_start(node),)])  # type: ignore[index]
    _read(node, of, readers)
    return None


def _transfer(node: Node, of: dict[Node, PathTuple]) -> PathTuple:
    source: Any = node.args[0]
    pieces = of.get(source) or (_start(source),)
    if tag_of(node).slot:
        pieces = (_join(pieces, node),)
    group = ranks_of(group_of(node))
    is_gather = tag_of(node).role in _OF_ALL_SHARDS
    for piece in pieces:
        if piece.is_known and is_gather and (not piece.slot or piece.is_gradient):
            raise broken(node, "a parameter gather reads something else", why="it may only move, cast and pack inputs")
        if group in piece.groups:
            what = "gathered from" if is_gather else "summed over"
            raise broken(
                node,
                f"{piece.slot or tag_of(node).slot or 'a bucket'} is {what} {group_of(node)} twice",
                why="every rank's part counts once",
            )
    return tuple(each._replace(groups=each.groups | {group}, is_gradient=not is_gather) for each in pieces)


def _move(node: Node, of: dict[Node, PathTuple]) -> PathTuple | None:
    source: Any = node.args[0]
    pieces = of.get(source)
    if pieces is None or len(pieces) == 1:
        return pieces
    if node.target is operator.getitem and len(pieces) == len(value_of(source)):
        return (pieces[node.args[1]],)  # type: ignore[index]
    if node.target is not operator.getitem and node.target not in _CUTS:
        return pieces
    if len({(piece.slot, piece.groups) for piece in pieces}) == 1:
        return (_join(pieces, node),)
    if tag_of(node).made_by != "capture":
        raise broken(
            node,
            f"a pack of {len(pieces)} values is cut into other parts",
            why="they cannot be assigned to a parameter",
            do="cut with one split into as many parts as were put together",
        )
    return UNKNOWN


def _add(node: Node, addends: list[PathTuple]) -> PathTuple:
    """A sum of two gradients of one parameter, which both must have seen the same collectives."""
    one, other = (_join(each, node) for each in addends)
    if node.args[0] is node.args[1]:
        raise broken(node, f"a gradient of {one.slot or 'a bucket'} is added to itself", why="each part counts once")
    if not (one.is_known and other.is_known):
        return UNKNOWN
    if one.groups != other.groups:
        raise broken(
            node,
            f"a gradient summed over {_listed(one.groups)} is added to one summed over {_listed(other.groups)}",
            why="parts of one gradient take the same way, or some ranks' share of a part is lost",
        )
    return (_join((one, other), node),)


def _join(pieces: PathTuple, node: Node) -> GradientPath:
    """One flow for a value made of several: they must belong to one parameter if they are gradients."""
    if len(pieces) == 1:
        return pieces[0]
    if not all(piece.is_known for piece in pieces):
        return UNKNOWN[0]
    slots = {piece.slot for piece in pieces if piece.slot}
    if len(slots) > 1 and any(piece.is_gradient for piece in pieces):
        raise broken(node, f"gradients of {_listed(slots)} end in one value", why="each parameter has its own gradient")
    groups = frozenset().union(*(piece.groups for piece in pieces))
    paths = frozenset().union(*(piece.paths for piece in pieces))
    slot = slots.pop() if len(slots) == 1 else ""
    return GradientPath(slot, groups, paths, is_gradient=any(piece.is_gradient for piece in pieces))


def _read(node: Node, of: dict[Node, PathTuple], readers: list[Reader]) -> None:
    """A compute op may read a parameter; one that reads a gradient is an error."""
    for each in node.all_input_nodes:
        for piece in of.get(each, ()):
            if _is_gradient((piece,)) and not reads_shape_only(node):
                raise broken(
                    node,
                    f"the finished gradient of {piece.slot or 'a bucket'} is changed",
                    why="on its way out a gradient may be moved, cast, summed and added to its like, nothing else",
                )
            if piece.is_known and piece.slot and not piece.is_gradient:
                readers.append(Reader(node, piece))


def _name(node: Node, pieces: PathTuple) -> PathTuple:
    """Let a node's tag say whose value it moves, or refuse it where the tag says something else."""
    tag = tag_of(node)
    slot = tag.slot if tag.role in (Role.PARAM_ALL_GATHER, Role.GRAD_REDUCE_SCATTER) else ""
    slot = slot or (tag.gradient_of if pieces[0].is_gradient else "")
    if not slot or len(pieces) != 1:
        return pieces
    (piece,) = pieces
    if piece.slot and piece.slot != slot:
        kind = "gradient" if piece.is_gradient else "parameter"
        raise broken(
            node,
            f"a node of {slot} moves the {kind} of {piece.slot}",
            why="its tag and its argument name two parameters",
        )
    return (piece._replace(slot=slot),) if piece.is_known else pieces


def _start(node: Node) -> GradientPath:
    """The flow of a gradient before any collective."""
    tag = tag_of(node)
    slot = tag.slot if tag.role is Role.GRAD_REDUCE_SCATTER else tag.gradient_of
    paths = frozenset({tag.path} if tag.path else ())
    return GradientPath(slot=slot, paths=paths, is_gradient=tag.direction is Direction.BACKWARD)


def _is_gradient(pieces: PathTuple | None) -> bool:
    """Whether a value is the gradient of a parameter, and not just something on the way to one."""
    return pieces is not None and any(piece.is_gradient and (piece.slot or piece.groups) for piece in pieces)


@functools.cache
def _may_start(target: Any) -> bool:
    """Whether an op's tag may say that it sends or packs a parameter or a gradient."""
    return target in LAUNCHES or target in _PACKS


@functools.cache
def is_value_preserving(target: Any) -> bool:
    """Whether an op hands on the numbers of its first argument, unchanged but for their type and place."""
    if target in _COPIES:
        return True
    return is_op(target) and not target._schema.is_mutable and any(each.alias_info for each in target._schema.returns)


def is_pack(node: Node) -> bool:
    """Whether a node puts several values into one."""
    return node.target in _PACKS


_SHAPE_ONLY = ("zeros", "ones", "empty", "full", "rand", "randn", "sym_size", "sym_numel", "sym_stride")


@functools.cache
def _reads_shape_only(target: Any) -> bool:
    name = target._schema.name.partition("::")[2] if is_op(target) else ""
    return name.removeprefix("new_").removesuffix("_like") in _SHAPE_ONLY


def reads_shape_only(node: Node) -> bool:
    """Whether a node looks at its arguments' shapes but not at their numbers."""
    return _reads_shape_only(node.target)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no group"
