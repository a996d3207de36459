"""Which weights can be gathered in float8: those whose gathered shards only casts with one scale a tensor read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from monograph.annotate import Role
from monograph.compat.ops import ALL_GATHER, ATEN
from monograph.graph.cast_weights import FLOAT8_CASTS
from monograph.graph.query import value_of, wait_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of

E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Piece:
    """A parameter in an all_gather."""

    shard: Node
    """What is sent of it."""
    gathered: Node
    """The shards of all ranks together."""

    @property
    def parameter(self) -> Node | None:
        """The parameter that is sent, rounded to bfloat16 or as it is; None for anything else."""
        node = self.shard
        if node.target is ATEN._to_copy.default and node.kwargs == {"dtype": torch.bfloat16}:
            node = node.args[0]  # type: ignore[assignment]
        return node if node.op == "placeholder" and value_of(self.shard).dtype is torch.bfloat16 else None


@dataclass(frozen=True)
class SharedScale:
    """Parameters that matmuls read as one matrix with one scale."""

    pieces: tuple[Piece, ...]
    value: Node
    """What is cast: a gathered parameter, or several, one below the other."""

    @property
    def parameters(self) -> tuple[Node, ...]:
        """This rank's shards."""
        return tuple(piece.parameter for piece in self.pieces if piece.parameter is not None)

    @property
    def casts(self) -> tuple[Node, ...]:
        """Its casts to float8, in both halves of the step."""
        return tuple(self.value.users)


@dataclass(frozen=True)
class Float8Gather:
    """An all_gather of parameters, some of which become float8."""

    launch: Node
    pieces: tuple[Piece, ...]
    """All of them, in order."""
    weights: tuple[SharedScale, ...]
    is_packed: bool
    """Whether parameters are sent one behind the other, as bucket_collectives packs them."""


def plan_gathers(graph: StepGraph) -> list[Float8Gather]:
    """Every all_gather with weights that only casts with one scale a tensor read."""
    found = []
    for launch in graph.nodes:
        if launch.target is ALL_GATHER and tag_of(launch).role is Role.PARAM_ALL_GATHER:
            packed = find_packed(launch)
            pieces = packed or [Piece(launch.args[0], wait_of(launch))]  # type: ignore[arg-type]
            weights = find_weights(pieces)
            if weights:
                found.append(Float8Gather(launch, tuple(pieces), tuple(weights), is_packed=bool(packed)))
    return found


def find_packed(launch: Node) -> list[Piece]:
    """What bucket_collectives packed into an all_gather; nothing where one parameter is sent alone."""
    flat: Any = launch.args[0]
    pack = flat.args[0] if flat.target is ATEN.view.default else None
    split = _only(_only(wait_of(launch)))
    if pack is None or pack.target is not ATEN.cat.default or split is None:
        return []
    parts = {node.args[1]: _only(_only(node)) for node in split.users}
    if split.target is not ATEN.split_with_sizes.default or len(parts) != len(pack.args[0]) or None in parts.values():
        return []
    return [Piece(view.args[0], parts[index]) for index, view in enumerate(pack.args[0])]  # type: ignore[arg-type]


def _only(node: Node | None) -> Node | None:
    return next(iter(node.users)) if node is not None and len(node.users) == 1 else None


def find_weights(pieces: Sequence[Piece]) -> list[SharedScale]:
    """The weights among gathered parameters that nothing but casts read."""
    known = {piece.gathered: piece for piece in pieces if piece.parameter is not None}
    found: dict[Node, SharedScale] = {}
    for piece in known.values():
        value, members = piece.gathered, [piece]
        merged = _only(value)
        if merged is not None and merged.target is ATEN.cat.default and (len(merged.args) == 1 or merged.args[1] == 0):
            parts: Any = merged.args[0]
            is_whole = all(part in known and _only(part) is merged for part in parts) and len(set(parts)) == len(parts)
            value, members = merged, [known[part] for part in parts] if is_whole else []
        if members and value.users and all(is_tensorwise(user) for user in value.users):
            found[value] = SharedScale(tuple(members), value)
    return list(found.values())


def is_tensorwise(node: Node) -> bool:
    """Whether a node casts a matrix to e4m3 with one scale."""
    return node.target in FLOAT8_CASTS and tuple(node.args[1:3]) == (E4M3, False)
