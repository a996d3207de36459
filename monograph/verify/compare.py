"""Two traces of the same step, compared module by module."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from monograph.verify.trace import RankMismatch, StepTrace

NOISE = 1e-6
"""A gradient that is everywhere below this part of the model's largest one is zero but for rounding."""
CANCELLED = 1e-8
"""Differences between gradients of outputs below this part of the model's largest one are rounding. The backward of a
softmax subtracts fp32 numbers that agree in most of their 24 bits: where attention is nearly even, as it is before
training, what is left for queries is 1e-5 times as large as those numbers, and most of its own digits are rounding."""
KINDS = ("start", "forward", "backward", "gradient", "state", "updated")
ROUNDINGS = 2
"""Of a weight, each of half a last bit or less, that an update may make in another order."""


@dataclass(kw_only=True)
class ModuleRow:
    """Largest relative differences of one module; None where there is nothing to compare."""

    path: str
    start: float | None = None
    """Parameters before the step."""
    forward: float | None = None
    """What the module puts out."""
    backward: float | None = None
    """The gradient of what it puts out: it comes from the modules after this one."""
    gradient: float | None = None
    """The gradients of its parameters."""
    state: float | None = None
    """The optimizer's state after the step."""
    updated: float | None = None
    """How parameters and buffers changed in the step, relative to the largest change of each."""
    routing: int | None = None
    """Tokens that chose other experts."""

    def worst(self) -> float:
        """The largest of all differences; any difference in routing is infinitely large."""
        found = [value for kind in KINDS if (value := getattr(self, kind)) is not None]
        return max([*found, float("inf") if self.routing else 0.0])


@dataclass(kw_only=True)
class Differences:
    """What one comparison, or several of them together, found."""

    rows: dict[str, ModuleRow] = field(default_factory=dict)
    """By module path, in forward order."""
    loss: float = 0.0
    grad_norm: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    """Auxiliary losses and the experts' load, by name."""
    mismatches: list[RankMismatch] = field(default_factory=list)

    def worst(self) -> float:
        """The largest of all differences."""
        return max([self.loss, self.grad_norm, *self.metrics.values(), *(row.worst() for row in self.rows.values())])

    def add(self, other: "Differences") -> None:
        """Keep the larger of both, number by number."""
        self.loss, self.grad_norm = max(self.loss, other.loss), max(self.grad_norm, other.grad_norm)
        for name, difference in other.metrics.items():
            self.metrics[name] = max(self.metrics.get(name, 0.0), difference)
        self.mismatches += [entry for entry in other.mismatches if entry not in self.mismatches]
        for path, theirs in other.rows.items():
            mine = self.rows.setdefault(path, ModuleRow(path=path))
            for kind in (*KINDS, "routing"):
                values = [value for row in (mine, theirs) if (value := getattr(row, kind)) is not None]
                setattr(mine, kind, max(values, default=None))


def compare(sharded: StepTrace, reference: StepTrace) -> Differences:
    """The differences of one step."""
    found = Differences(
        loss=relative(sharded.loss, reference.loss),
        grad_norm=relative(sharded.grad_norm, reference.grad_norm),
        metrics={
            name: largest_difference(sharded.metrics.get(name), value) for name, value in reference.metrics.items()
        },
        mismatches=list(sharded.mismatches),
    )
    for path in plan_order(reference):
        found.rows[path] = ModuleRow(path=path)
    sizes = [largest(gradient) for gradient in reference.output_gradients.values()]
    rounding = CANCELLED * max((size for size in sizes if math.isfinite(size)), default=0.0)
    by_module = (
        ("forward", sharded.outputs, reference.outputs, 0.0),
        ("backward", sharded.output_gradients, reference.output_gradients, rounding),
    )
    for kind, ours, theirs, gap in by_module:
        for path, expected in theirs.items():
            _note(found.rows[path], kind, ours.get(path), expected, rounding=gap)
    for path, choice in reference.choices.items():
        found.rows[path].routing = count_rerouted(sharded.choices[path], choice)
    noise = NOISE * max((largest(gradient) for gradient in reference.gradients.values()), default=0.0)
    by_name = (
        ("start", sharded.before, reference.before, 0.0),
        ("gradient", sharded.gradients, reference.gradients, noise),
        *(("state", sharded.state.get(kind, {}), named, 0.0) for kind, named in reference.state.items()),
    )
    for kind, ours, theirs, below in by_name:
        for name, expected in theirs.items():
            _note(found.rows[module_of(name)], kind, ours.get(name), expected, noise=below)
    for name, expected in reference.after.items():
        row, before = found.rows[module_of(name)], reference.before[name]
        row.updated = max(row.updated or 0.0, change_difference(sharded.after.get(name), expected, before))
    return found


def plan_order(trace: StepTrace) -> list[str]:
    """All modules in forward order; those that only hold parameters stand before the module they are part of."""
    order = list(trace.outputs)
    for path in [*trace.choices, *_modules(trace.before), *_modules(trace.after)]:
        if path not in order:
            parents = [parent for parent in _parents(path) if parent in order]
            order.insert(order.index(parents[0]) if parents else len(order), path)
    return order


def module_of(name: str) -> str:
    """The path of the module that a parameter or buffer belongs to."""
    return name.rpartition(".")[0]


def _modules(tensors: Mapping[str, Tensor]) -> Iterable[str]:
    return dict.fromkeys(module_of(name) for name in tensors)


def _parents(path: str) -> list[str]:
    """The modules around this one, innermost first."""
    parts = path.split(".")
    return [".".join(parts[:size]) for size in range(len(parts) - 1, 0, -1)]


def relative(ours: float, theirs: float) -> float:
    """The difference relative to the reference."""
    if ours == theirs:
        return 0.0
    difference = abs(ours - theirs) / abs(theirs) if theirs else float("inf")
    return difference if difference == difference else float("inf")


def largest(values: Tensor) -> float:
    """The largest magnitude; 0 when there are no elements."""
    return values.abs().max().item() if values.numel() else 0.0


def largest_difference(ours: Tensor | None, theirs: Tensor, *, noise: float = 0.0, rounding: float = 0.0) -> float:
    """The largest difference of any element, relative to the reference's largest one; none where both are below
    `noise`, or the difference itself is below `rounding`."""
    if ours is None or ours.shape != theirs.shape:
        return float("inf")
    gap, scale = largest(ours - theirs), largest(theirs)
    if gap <= rounding or max(largest(ours), scale) < noise:
        return 0.0
    found = gap / scale if scale else float("inf")
    return found if found == found else float("inf")


def change_difference(ours: Tensor | None, theirs: Tensor, before: Tensor) -> float:
    """The largest difference of any element after an update, relative to the largest change that the reference made.

    Weights are far larger than what an update adds to them, so a wrong update is a small part of the weight; and their
    rounding is a large part of a small update, so that much of a difference counts as none.
    """
    if ours is None or ours.shape != theirs.shape:
        return float("inf")
    ours, theirs, before = (value.double() for value in (ours, theirs, before))
    rounding = ROUNDINGS * torch.finfo(torch.float32).eps * torch.maximum(theirs.abs(), before.abs())
    gap, moved = largest(((ours - theirs).abs() - rounding).clamp(min=0.0)), largest(theirs - before)
    if gap == 0.0:
        return 0.0
    found = gap / moved if moved else float("inf")
    return found if found == found else float("inf")


def count_rerouted(ours: Tensor, theirs: Tensor) -> int:
    """Tokens whose set of chosen experts differs."""
    if ours.shape != theirs.shape:
        return theirs[..., 0].numel()
    return int((ours.sort(-1).values != theirs.sort(-1).values).any(-1).sum())


def _note(
    row: ModuleRow, kind: str, ours: Tensor | None, theirs: Tensor, *, noise: float = 0.0, rounding: float = 0.0
) -> None:
    wide = None if ours is None else ours.to(torch.float64)
    found = largest_difference(wide, theirs.to(torch.float64), noise=noise, rounding=rounding)
    setattr(row, kind, max(getattr(row, kind) or 0.0, found))
