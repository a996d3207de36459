"""The parameter table: the only truth about where every stored number lives.

A parameter's global shape is first cut by tensor, expert and expert-tensor axes into a piece, and the piece by the
fsdp axis into this rank's shard. Cuts are even: what does not divide is padded at the end, with zeros that are never
saved, never counted in a norm and never seen by compute.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from monograph.axes import Axis
from monograph.errors import ConfigError
from monograph.kernels.square_sum import square_sum
from monograph.models.model import Model, find_unit
from monograph.models.parallel_plan import ParallelPlan, ShardedDim
from monograph.models.weight_decay import find_decayed
from monograph.parallel.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The part of one dim that a rank holds: where it starts, how much of it is real, how much is stored."""

    start: int
    size: int
    stored: int


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One stored parameter; tied names share a slot."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    cuts: tuple[ShardedDim, ...]
    shard: ShardedDim
    unit: str
    order: int
    mesh: Mesh
    is_frozen: bool = False
    """Whether it has no gradient, no optimizer state and no update."""
    is_decayed: bool = True
    """Whether weight decay shrinks it."""

    @property
    def name(self) -> str:
        """The name it is saved under."""
        return self.names[0]

    @property
    def is_expert(self) -> bool:
        """Whether it belongs to routed experts, which see the mesh differently."""
        return self.shard.axis is Axis.EFSDP

    @property
    def is_replicated_over_tp(self) -> bool:
        """Whether all tensor-parallel ranks hold the same values, each with part of the gradient."""
        return not self.is_expert and not any(cut.axis is Axis.TP for cut in self.cuts)

    @property
    def piece_shape(self) -> tuple[int, ...]:
        """What compute sees on one rank, padded rows included."""
        shape = list(self.shape)
        for cut in self.cuts:
            shape[cut.dim] = math.ceil(shape[cut.dim] / self.mesh.degree(cut.axis))
        return tuple(shape)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """What one rank stores."""
        shape = list(self.piece_shape)
        shape[self.shard.dim] = math.ceil(shape[self.shard.dim] / self.mesh.degree(self.shard.axis))
        return tuple(shape)

    def extents(self, rank: int) -> tuple[Extent, ...]:
        """For every dim, the part of the global tensor that `rank` stores."""
        found = []
        for dim, (whole, piece, local) in enumerate(zip(self.shape, self.piece_shape, self.local_shape, strict=True)):
            start = sum(self.mesh.coordinate(rank, cut.axis) * piece for cut in self.cuts if cut.dim == dim)
            end = min(start + piece, whole)
            if dim == self.shard.dim:
                start += self.mesh.coordinate(rank, self.shard.axis) * local
            size = max(0, min(local, end - start))
            found.append(Extent(start=min(start, whole), size=size, stored=local))
        return tuple(found)

    def take_shard(self, full: Tensor, rank: int) -> Tensor:
        """This rank's shard of a full tensor, padded with zeros."""
        local = full.new_zeros(self.local_shape)
        extents = self.extents(rank)
        if all(extent.size for extent in extents):
            source = full[tuple(slice(extent.start, extent.start + extent.size) for extent in extents)]
            self.valid_part(local, rank).copy_(source)
        return local

    def find_row_starts(self, rank: int) -> Tensor:
        """Positions in the global tensor where the rows of a rank's shard begin; rows are equally long.

        A row is as many elements as follow each other in both: a shard of whole rows of a matrix is one row.
        """
        extents = self.extents(rank)
        is_whole = [extent.stored == size for extent, size in zip(extents, self.shape, strict=True)]
        inner = max((dim for dim, whole in enumerate(is_whole) if not whole), default=0)
        starts = torch.zeros((), dtype=torch.int64)
        for dim, extent in enumerate(extents):
            index = torch.arange(extent.stored) if dim < inner else torch.zeros(1, dtype=torch.int64)
            starts = starts.unsqueeze(-1) + (extent.start + index) * math.prod(self.shape[dim + 1 :])
        return starts.reshape(-1)

    def valid_part(self, local: Tensor, rank: int) -> Tensor:
        """The view of a shard without its padding."""
        return local[tuple(slice(0, extent.size) for extent in self.extents(rank))]


class ParamTable:
    """All slots in the model's own order, by every name they go by."""

    def __init__(self, slots: list[Slot], mesh: Mesh) -> None:
        self.slots = slots
        self.mesh = mesh
        self._by_name = {name: slot for slot in slots for name in slot.names}

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    def __getitem__(self, name: str) -> Slot:
        return self._by_name[name]

    @property
    def trained(self) -> list[Slot]:
        """The slots that are not frozen."""
        return [slot for slot in self.slots if not slot.is_frozen]

    def of_unit(self, unit: str) -> list[tuple[str, Slot]]:
        """The parameters one unit uses, by their name within it; a tied one shows up in both of its units."""
        prefix = f"{unit}."
        return [(name[len(prefix) :], slot) for slot in self.slots for name in slot.names if name.startswith(prefix)]

    def of_units(self, units: Collection[str]) -> "ParamTable":
        """The table of some units alone, such as those of a pipeline stage; a tied slot is in that of each."""
        return ParamTable(
            [slot for slot in self.slots if any(find_unit(name, units) for name in slot.names)], self.mesh
        )

    def gather_full(self, slot: Slot, shards: Mapping[int, Tensor]) -> Tensor:
        """The global tensor from the shards of all ranks: what tests and `verify` compare."""
        full = next(iter(shards.values())).new_zeros(slot.shape)
        for rank, local in shards.items():
            where = tuple(slice(extent.start, extent.start + extent.size) for extent in slot.extents(rank))
            full[where] = slot.valid_part(local, rank)
        return full

    def squares(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Sums of squares of local shards: [of slots every rank holds a part of, of slots replicated over tp]."""
        parts: tuple[list[Tensor], list[Tensor]] = ([], [])
        for slot in self.trained:
            parts[slot.is_replicated_over_tp].append(gradients[slot.name])
        device = next(iter(gradients.values())).device
        return torch.stack([square_sum(part, device) for part in parts])


def build_table(model: Model, plan: ParallelPlan, mesh: Mesh) -> ParamTable:
    """The table of a model with whole parameters (on any device, usually meta), cut as the plan says."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    units, decayed = model.unit_modules(), find_decayed(model)
    slots = []
    for order, (name, parameter) in enumerate(model.named_parameters()):
        cuts = plan.cuts_of(name)
        is_expert = any(cut.axis is Axis.EP for cut in cuts)
        axis = Axis.EFSDP if is_expert else Axis.FSDP
        slots.append(
            Slot(
                names=tuple(names[id(parameter)]),
                shape=tuple(parameter.shape),
                cuts=cuts,
                shard=ShardedDim(axis=axis, dim=plan_shard_dim(tuple(parameter.shape), cuts, mesh, axis)),
                unit=unit_of(name, units),
                order=order,
                mesh=mesh,
                is_frozen=not parameter.requires_grad,
                is_decayed=name in decayed,
            )
        )
    return ParamTable(slots, mesh)


def plan_shard_dim(shape: tuple[int, ...], cuts: tuple[ShardedDim, ...], mesh: Mesh, axis: Axis) -> int:
    """Rows, unless a stack of experts has fewer of them than there are ranks to share it."""
    rows = shape[0]
    for cut in cuts:
        if cut.dim == 0:
            rows = math.ceil(rows / mesh.degree(cut.axis))
    degree = mesh.degree(axis)
    if axis is not Axis.EFSDP or degree <= rows:
        return 0
    hidden = shape[1]
    for cut in cuts:
        if cut.dim == 1:
            hidden //= mesh.degree(cut.axis)
    return 1 if hidden % degree == 0 else 0


def unit_of(name: str, units: Mapping[str, nn.Module]) -> str:
    """The unit that a parameter is gathered with; every parameter belongs to one."""
    found = find_unit(name, units)
    if not found:
        raise ConfigError(
            f"the parameter {name} belongs to no unit of the model",
            why=f"parameters are gathered with their unit, and the units are {', '.join(list(units)[:8])}",
            do="name the module it belongs to in units() of the model",
        )
    return found
