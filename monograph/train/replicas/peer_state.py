"""The whole state of a replica as plain tensors and values: what one that is behind takes over from another one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from monograph.errors import MonographError
from monograph.parallel.boundary import LocalizedShard


class StateMismatch(MonographError):
    """The state of another replica does not fit this one."""


@dataclass(frozen=True)
class PeerState:
    """What a checkpoint has, of one rank: ranks with the same number have the same shards in all replicas."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def find_local(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """The live tensors of this rank behind those of a checkpoint."""
    return {name: value.to_local() if isinstance(value, LocalizedShard) else value for name, value in tensors.items()}


@torch.no_grad()
def copy_tensors(live: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Write the tensors of another replica into those of this one; none is written unless all fit."""
    mine, other = ({name: (value.dtype, value.shape) for name, value in each.items()} for each in (live, given))
    if mine != other:
        name = next(name for name in sorted({*mine, *other}) if mine.get(name) != other.get(name))
        raise StateMismatch(
            f"{name} is {mine.get(name, 'absent')} here and {other.get(name, 'absent')} in the replica that has the "
            "latest step",
            why="replicas have the same model, optimizer and mesh",
            do="start every replica with the same settings and the same number of ranks",
        )
    for name, value in live.items():
        value.copy_(given[name])
