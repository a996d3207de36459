"""Which coordinates of a mesh hold the same value: partitions of all ranks into classes, and how ops combine them.

A value of the step is stored once for each class of ranks that provably hold it: the same op on the same operands, or
the same collective over groups whose members hold the same. Partitions are interned, so that combining two of them is
computed once for a whole graph.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monograph.axes import Group
from monograph.parallel.mesh import Mesh

Labels = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Partition:
    """All ranks of a mesh, divided into classes."""

    labels: Labels
    """The class of each rank; classes are numbered by their first rank."""
    firsts: tuple[int, ...]
    """The first rank of each class."""


class Coordinates:
    """The ranks of a mesh, and the partitions of them that a step needs."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.ranks = range(mesh.world_size)
        self._interned: dict[bytes, Partition] = {}
        self._joined: dict[tuple[int, ...], Partition] = {}
        self._exchanged: dict[tuple[int, Group, bool], Partition] = {}
        self._members: dict[Group, NDArray[np.int32]] = {}
        self.one = self.intern(np.zeros(mesh.world_size, dtype=np.int32))
        """The partition of values that all ranks hold."""

    def intern(self, labels: NDArray[np.integer]) -> Partition:
        """The partition with these classes, however they are numbered."""
        _, firsts, inverse = np.unique(labels, return_index=True, return_inverse=True)
        order = np.argsort(firsts)
        number = np.empty(len(order), dtype=np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)
        canonical: Labels = number[inverse.reshape(-1)]
        key = canonical.tobytes()
        if key not in self._interned:
            self._interned[key] = Partition(canonical, tuple(int(rank) for rank in firsts[order]))
        return self._interned[key]

    def by_key(self, keys: Sequence[Hashable]) -> Partition:
        """The partition in which ranks with equal keys share a class."""
        numbers: dict[Hashable, int] = {}
        return self.intern(np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int32))

    def join(self, parts: Sequence[Partition]) -> Partition:
        """The coarsest partition whose classes lie in one class of each of `parts`."""
        distinct = {id(part): part for part in parts if part is not self.one}
        if len(distinct) < 2:
            return next(iter(distinct.values()), self.one)
        key = tuple(sorted(distinct))
        if key not in self._joined:
            labels = np.zeros(len(self.ranks), dtype=np.int64)
            for part in distinct.values():
                combined = labels * len(part.firsts) + part.labels
                labels = np.unique(combined, return_inverse=True)[1].reshape(-1)
            self._joined[key] = self.intern(labels)
        return self._joined[key]

    def members(self, group: Group) -> NDArray[np.int32]:
        """[ranks, members]: for every rank the members of its group, in group order."""
        if group not in self._members:
            table = np.full((len(self.ranks), self.mesh.group_size(group)), -1, dtype=np.int32)
            for rank in self.ranks:
                if table[rank, 0] < 0:
                    found = self.mesh.members(group, rank)
                    table[list(found)] = found
            self._members[group] = table
        return self._members[group]

    def exchange(self, part: Partition, group: Group, *, by_place: bool) -> Partition:
        """The partition of what a collective over `group` leaves; `by_place`: each member gets a piece of its own."""
        key = id(part), group, by_place
        if key not in self._exchanged:
            members = self.members(group)
            seen = part.labels[members]
            if by_place:
                place = (members == np.arange(len(self.ranks))[:, None]).argmax(1).astype(np.int32)
                seen = np.concatenate([seen, place[:, None]], axis=1)
            inverse = np.unique(np.ascontiguousarray(seen), axis=0, return_inverse=True)[1]
            self._exchanged[key] = self.intern(inverse.reshape(-1))
        return self._exchanged[key]
