"""The outputs of a simulated step against one device's: loss, metrics and every gradient, on every rank."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from monograph.axes import Group
from monograph.graph.signature import OutputKind, OutputSpec
from monograph.parallel.param_table import ParamTable, Slot
from monograph.verify.simulate.coordinates import Coordinates
from monograph.verify.simulate.execute import SharedValue
from monograph.verify.simulate.one_device import Expected

TOLERANCE = 1e-8
"""Largest relative difference that fp64 rounding explains: sums in another order differ by 1e-15 to 1e-11."""
NOISE = 1e-6
"""A gradient below this part of the model's largest one is measured against that part: it may be zero but for
rounding, as that of a bias before a softmax is."""


@dataclass(frozen=True, kw_only=True)
class OutputDifference:
    """One output of the step that is not what one device computes."""

    kind: OutputKind
    name: str
    difference: float
    """Relative to the largest number that one device has."""
    rank: int
    """The first rank that shows it."""
    is_missing: bool = False
    """The step does not compute it at all."""

    def __str__(self) -> str:
        what = "the loss" if self.kind is OutputKind.LOSS else f"the {self.kind} {self.name}".replace("_", " ")
        if self.is_missing:
            return f"{what} is not computed"
        return f"{what} differs by {self.difference:.1e} on rank {self.rank}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All outputs of a step against one device."""

    compared: int
    """Outputs."""
    worst: float
    """The largest relative difference of any of them."""
    wrong: tuple[OutputDifference, ...]

    @property
    def is_equal(self) -> bool:
        """Whether no output differs."""
        return not self.wrong


def compare_outputs(
    outputs: tuple[OutputSpec, ...],
    results: list[SharedValue | None],
    expected: Expected,
    table: ParamTable,
    coordinates: Coordinates,
) -> Comparison:
    """Every output on every rank: gradients as shards, the loss summed over data, metrics summed over all ranks.

    One that the step should have and does not compute differs without bound.
    """
    largest = max((gradient.abs().max().item() for gradient in expected.gradients.values()), default=0.0)
    computed = {
        (spec.kind, spec.name): value for spec, value in zip(outputs, results, strict=True) if value is not None
    }
    found = []
    for kind, name in list_outputs(expected, table):
        value = computed.get((kind, name))
        if value is None:
            found.append(OutputDifference(kind=kind, name=name, difference=float("inf"), rank=0, is_missing=True))
            continue
        if kind is OutputKind.GRADIENT:
            slot = table[name]
            worst = compare_shards(slot, value, expected.gradients[slot.name], coordinates, floor=NOISE * largest)
        elif kind is OutputKind.LOSS:
            worst = compare_sums(value, torch.tensor(expected.loss, dtype=torch.float64), Group.BATCH, coordinates)
        else:
            worst = compare_sums(value, expected.metrics[name], Group.WORLD, coordinates)
        found.append(OutputDifference(kind=kind, name=name, difference=worst[0], rank=worst[1]))
    return Comparison(
        compared=len(found),
        worst=max((entry.difference for entry in found), default=0.0),
        wrong=tuple(entry for entry in found if not entry.difference <= TOLERANCE),
    )


def list_outputs(expected: Expected, table: ParamTable) -> Iterator[tuple[OutputKind, str]]:
    """What a step on any mesh has to compute."""
    yield OutputKind.LOSS, ""
    for slot in table.trained:
        yield OutputKind.GRADIENT, slot.name
    for name in expected.metrics:
        yield OutputKind.METRIC, name


def compare_shards(
    slot: Slot, value: SharedValue, whole: Tensor, coordinates: Coordinates, *, floor: float = 0.0
) -> tuple[float, int]:
    """The largest difference of any rank's shard from its part of the whole, and the first rank that has it."""
    scale = max(whole.abs().max().item() if whole.numel() else 0.0, floor)
    worst, where, seen = 0.0, 0, set()
    for rank in coordinates.ranks:
        extents = slot.extents(rank)
        key = (int(value.part.labels[rank]), *((extent.start, extent.size) for extent in extents))
        if key in seen:
            continue
        seen.add(key)
        shard = value.at(rank)
        if tuple(shard.shape) != slot.local_shape:
            return float("inf"), rank
        part = slot.valid_part(shard, rank)
        wanted = whole[tuple(slice(extent.start, extent.start + extent.size) for extent in extents)]
        difference = relative(part, wanted, scale)
        if difference > worst:
            worst, where = difference, rank
    return worst, where


def compare_sums(value: SharedValue, wanted: Tensor, group: Group, coordinates: Coordinates) -> tuple[float, int]:
    """The same for the sum over the members of a group, which is `wanted` in every group."""
    members = coordinates.members(group)
    worst, where = 0.0, 0
    for rank in np.unique(members[:, 0]):
        total = torch.zeros_like(wanted, dtype=torch.float64)
        labels, counts = np.unique(value.part.labels[members[rank]], return_counts=True)
        for label, count in zip(labels, counts, strict=True):
            total = total + value.items[label].double() * int(count)
        difference = relative(total, wanted, largest(wanted))
        if difference > worst:
            worst, where = difference, int(rank)
    return worst, where


def largest(value: Tensor) -> float:
    """The largest magnitude; 0 where there is no element."""
    return value.abs().max().item() if value.numel() else 0.0


def relative(ours: Tensor, wanted: Tensor, scale: float) -> float:
    """The largest difference of any element relative to `scale`; infinite where a number is missing or not finite."""
    if ours.shape != wanted.shape:
        return float("inf")
    gap = largest(ours.double() - wanted.double())
    if gap == 0.0:
        return 0.0
    found = gap / scale if scale else float("inf")
    return found if found == found else float("inf")
