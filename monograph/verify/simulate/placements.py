"""How the ranks of a mesh hold a value that one device has as a whole, found by trying: no op needs a rule.

For every data-parallel part, the values of its tensor- and context-parallel ranks are put together in each way that
gives the whole's shape: replicated, sharded along a dim, or partial sums. The first way that gives the whole's numbers
is the placement; one that gives a multiple of them is kept with its factor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from monograph.axes import Axis
from monograph.execute.base import find_part
from monograph.parallel.mesh import Mesh
from monograph.verify.simulate.execute import SharedValue
from monograph.verify.simulate.outcome import largest

CLOSE = 1e-7
REPLICATED, PARTIAL = "replicated", "partial"


@dataclass(frozen=True)
class Placement:
    """How a value lies on the tensor- and context-parallel ranks of a data-parallel part."""

    tp: str = REPLICATED
    cp: str = REPLICATED
    factor: float = 1.0
    """What all numbers are multiplied by."""
    is_telling: bool = True
    """Whether the value could have been wrong: floating-point numbers that are not all the same."""

    @property
    def partial_axes(self) -> tuple[str, ...]:
        """The axes that a sum is missing over."""
        return tuple(axis for axis in ("tp", "cp") if getattr(self, axis) == PARTIAL)

    def describe(self, mesh: Mesh) -> str:
        """The placement over the axes that the mesh has."""
        words = [f"{getattr(self, axis)} over {axis}" for axis in ("tp", "cp") if getattr(mesh, axis) > 1]
        factor = "" if self.factor == 1.0 else f"{self.factor:.6g} times too large, "
        return factor + (" and ".join(words) or "as on one device")


@dataclass(frozen=True)
class _Way:
    """One way to put the values of an axis together."""

    name: str
    dim: int | None = None
    rows: int = 1
    """Sequences that follow each other in a dim that has the tokens of all."""

    def shape(self, shape: Sequence[int], degree: int) -> tuple[int, ...]:
        return tuple(size * degree if number == self.dim else size for number, size in enumerate(shape))

    def join(self, values: Sequence[Tensor], mesh: Mesh, axis: Axis) -> Tensor | None:
        """The values of an axis as one; None where this is not how they are held."""
        first = values[0]
        if self.name == REPLICATED:
            return first if all(value is first or _is_close(value, first) for value in values) else None
        if self.name == PARTIAL:
            return sum(values[1:], first)
        dim = self.dim or 0
        inside = [value.unflatten(dim, (self.rows, -1)) for value in values] if self.rows > 1 else values
        along = dim + (self.rows > 1)
        if axis is Axis.TP:
            whole = torch.cat(list(inside), along)
        else:
            shape = [*inside[0].shape]
            shape[along] *= mesh.cp
            whole = inside[0].new_empty(shape)
            for place, value in enumerate(inside):
                part = find_part(mesh, place)
                if value.shape[along] % len(part.bounds(shape[along])):
                    return None  # no sequence: a rank has one or two equal slices of each
                part.put(value, whole, along)
        return whole.flatten(dim, dim + 1) if self.rows > 1 else whole


def find_placement(value: SharedValue, wholes: Sequence[Any], mesh: Mesh, *, rows: int = 1) -> Placement | None:
    """How the ranks hold what one device has for each data-parallel part; None where no way gives its numbers."""
    grids = [_grid(value, mesh, part) for part in range(len(wholes))]
    if not all(isinstance(held, Tensor) for grid in grids for row in grid for held in row):
        return None
    if not all(isinstance(whole, Tensor) for whole in wholes):
        return None
    loose = None
    for tp, cp in _ways(grids[0][0][0], wholes[0], mesh, rows):
        factor = _match(grids[0], wholes[0], mesh, tp, cp)
        if factor is None or (factor != 1.0 and loose is not None):
            continue
        if all(_match(grid, whole, mesh, tp, cp) == factor for grid, whole in zip(grids, wholes, strict=True)):
            found = Placement(tp.name, cp.name, factor, _is_telling(wholes[0]))
            if factor == 1.0:
                return found
            loose = found
    return loose


def has_way(value: SharedValue, whole: Any, mesh: Mesh, *, rows: int = 1) -> bool:
    """Whether any placement gives the shape that one device has."""
    held = value.at(0)
    return isinstance(held, Tensor) and isinstance(whole, Tensor) and any(_ways(held, whole, mesh, rows))


def _grid(value: SharedValue, mesh: Mesh, part: int) -> list[list[Any]]:
    """[cp][tp]: what the ranks hold that read one data-parallel part."""
    replicate, shard = divmod(part, mesh.dp_shard)
    first = replicate * mesh.stride(Axis.DP_REPLICATE) + shard * mesh.stride(Axis.DP_SHARD)
    return [[value.at(first + cp * mesh.stride(Axis.CP) + tp) for tp in range(mesh.tp)] for cp in range(mesh.cp)]


def _ways(held: Tensor, whole: Tensor, mesh: Mesh, rows: int) -> Iterator[tuple[_Way, _Way]]:
    """The pairs of ways, for tp and for cp, that give the whole's shape."""
    for tp in _ways_of(held, mesh.tp, rows):
        for cp in _ways_of(held, mesh.cp, rows):
            if cp.shape(tp.shape(held.shape, mesh.tp), mesh.cp) == tuple(whole.shape):
                yield tp, cp


def _ways_of(held: Tensor, degree: int, rows: int) -> Iterator[_Way]:
    yield _Way(REPLICATED)
    if degree == 1:
        return
    for dim, size in enumerate(held.shape):
        yield _Way(f"shard({dim})", dim)
        if rows > 1 and size % rows == 0 and size > rows:
            yield _Way(f"shard({dim})", dim, rows)
    if held.is_floating_point() or held.dtype == torch.int64:
        yield _Way(PARTIAL)


def _match(grid: list[list[Any]], whole: Tensor, mesh: Mesh, tp: _Way, cp: _Way) -> float | None:
    """What the whole is multiplied by where this is how ranks hold it; None where it is not."""
    if any(held.shape != grid[0][0].shape for row in grid for held in row):
        return None
    rows = [tp.join(row, mesh, Axis.TP) for row in grid]
    inside = [row for row in rows if row is not None]
    joined = cp.join(inside, mesh, Axis.CP) if len(inside) == len(rows) else None
    if joined is None:
        return None
    if _is_close(joined, whole):
        return 1.0
    if not _is_telling(whole) or not joined.is_floating_point():
        return None
    factor = float((joined * whole).sum() / whole.square().sum())
    return round(factor, 6) if abs(factor) > CLOSE and _is_close(joined, whole * factor) else None


def _is_close(ours: Tensor, wanted: Tensor) -> bool:
    if ours.shape != wanted.shape:
        return False
    if not (ours.is_floating_point() and wanted.is_floating_point()):
        return bool((ours == wanted).all())
    same = torch.isfinite(wanted)
    if not torch.equal(torch.isfinite(ours), same):
        return False
    return largest(ours[same] - wanted[same]) <= CLOSE * max(largest(wanted[same]), 1e-30)


def _is_telling(whole: Tensor) -> bool:
    return whole.is_floating_point() and whole.numel() > 1 and bool((whole != whole.flatten()[0]).any())
