"""Two traces of the same step, compared module by module; and where they begin to differ."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from monograph.verify.trace import StepTrace


@dataclass(kw_only=True)
class Row:
    """Largest relative differences of one module, over all steps; None where there is nothing to compare."""

    path: str
    forward: float | None = None
    start: float | None = None
    gradient: float | None = None
    updated: float | None = None
    routing: int | None = None
    """Tokens that chose other experts."""

    def worst(self) -> float:
        """The largest of all differences; any difference in routing is infinitely large."""
        found = [v for v in (self.forward, self.start, self.gradient, self.updated) if v is not None]
        return max([*found, float("inf") if self.routing else 0.0])


@dataclass(kw_only=True)
class Verdict:
    """What the comparison found."""

    tolerance: float
    rows: dict[str, Row] = field(default_factory=dict)
    loss: float = 0.0
    grad_norm: float = 0.0
    torn: list[str] = field(default_factory=list)
    forward_order: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether everything lies within the tolerance and all ranks agree."""
        worst = max([self.loss, self.grad_norm, *(row.worst() for row in self.rows.values())])
        return worst <= self.tolerance and not self.torn

    def first_difference(self) -> str:
        """The module to look at, and why; empty when there is none.

        A wrong output is blamed on the first module in forward order that shows it, since all later ones inherit it.
        When all outputs agree, gradients are at fault, and those travel backwards: the first in forward order and the
        one nearest to the loss are both named.
        """
        for path in self.forward_order:
            row = self.rows[path]
            if row.routing:
                return f"{path}: {row.routing} tokens chose other experts"
            if (row.forward or 0.0) > self.tolerance:
                return f"{path}: its output differs by {row.forward:.1e}"
        for kind, text in (("start", "starting values"), ("gradient", "gradient"), ("updated", "updated values")):
            wrong = [r for r in self.rows.values() if (getattr(r, kind) or 0.0) > self.tolerance]
            if wrong:
                first, last = wrong[0], wrong[-1]
                named = f"{first.path}: {text} differ by {getattr(first, kind):.1e}"
                return named if first is last else f"{named} (nearest to the loss: {last.path})"
        if self.torn:
            return self.torn[0]
        for name in ("loss", "grad_norm"):
            if getattr(self, name) > self.tolerance:
                return f"{name} differs by {getattr(self, name):.1e}"
        return ""


def compare(verdict: Verdict, sharded: StepTrace, reference: StepTrace) -> None:
    """Add one step's differences to the verdict."""
    verdict.loss = max(verdict.loss, relative(sharded.loss, reference.loss))
    verdict.grad_norm = max(verdict.grad_norm, relative(sharded.grad_norm, reference.grad_norm))
    verdict.torn += [entry for entry in sharded.torn if entry not in verdict.torn]
    order = list(reference.outputs)
    for path in reference.choices:
        parent = path.rsplit(".", 1)[0]
        order.insert(order.index(parent), path)
    verdict.forward_order = order
    for path in order:
        _row(verdict, path)
    for path, output in reference.outputs.items():
        _note(_row(verdict, path), "forward", sharded.outputs[path], output)
    for path, choice in reference.choices.items():
        row = _row(verdict, path)
        row.routing = max(row.routing or 0, count_rerouted(sharded.choices[path], choice))
    kinds: tuple[tuple[str, Mapping[str, Tensor], Mapping[str, Tensor]], ...] = (
        ("start", sharded.before, reference.before),
        ("gradient", sharded.gradients, reference.gradients),
        ("updated", sharded.after, reference.after),
    )
    for kind, ours, theirs in kinds:
        for name, expected in theirs.items():
            _note(_row(verdict, name.rpartition(".")[0]), kind, ours[name], expected)


def relative(ours: float, theirs: float) -> float:
    """The difference relative to the reference."""
    if ours == theirs:
        return 0.0
    difference = abs(ours - theirs) / abs(theirs) if theirs else float("inf")
    return difference if difference == difference else float("inf")


def largest_difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of any element, relative to the reference's largest element."""
    if ours.shape != theirs.shape:
        return float("inf")
    gap = (ours - theirs).abs().max().item() if ours.numel() else 0.0
    if gap == 0.0:
        return 0.0
    scale = theirs.abs().max().item()
    found = gap / scale if scale else float("inf")
    return found if found == found else float("inf")


def count_rerouted(ours: Tensor, theirs: Tensor) -> int:
    """Tokens whose set of chosen experts differs."""
    if ours.shape != theirs.shape:
        return theirs[..., 0].numel()
    return int((ours.sort(-1).values != theirs.sort(-1).values).any(-1).sum())


def _row(verdict: Verdict, path: str) -> Row:
    return verdict.rows.setdefault(path, Row(path=path))


def _note(row: Row, kind: str, ours: Tensor, theirs: Tensor) -> None:
    found = largest_difference(ours.to(torch.float64), theirs.to(torch.float64))
    setattr(row, kind, max(getattr(row, kind) or 0.0, found))
