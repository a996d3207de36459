"""What verify concludes: equal or not, and if not, where the trouble begins.

A fault shows in many places, because everything computed from a wrong number is wrong as well. So the search follows
the order of computation: starting values, outputs in forward order, the loss, gradients from the loss backwards, the
norm, the update; and it ends at the first step that shows anything.
"""

from dataclasses import dataclass, field

from monograph.verify.compare import Differences, ModuleRow, module_of
from monograph.verify.trace import RankMismatch


@dataclass(kw_only=True)
class Verdict:
    """The differences of all steps, and the first thing to look at."""

    tolerance: float
    numerics: str = ""
    """What the sharded step promises about its numerics."""
    all: Differences = field(default_factory=Differences)
    blame: str = ""
    """The module (or number) where the first difference arises, and what differs; empty when there is none."""
    step: int = 0
    """The first step that differs."""
    precision: str = "fp32"
    """What both sides computed in."""
    float8: "Verdict | None" = None
    """The same about the float8 matmuls of a run that asks for them, where the mesh can be compared in float8."""
    uncovered: tuple[str, ...] = ()
    """What the run does and this did not compare."""
    float8_reason: str = ""
    """Why a run that asks for float8 was compared in fp32 alone."""

    @property
    def is_equal(self) -> bool:
        """Whether everything lies within the tolerance and all ranks agree."""
        return self.is_close and (self.float8 is None or self.float8.is_equal)

    @property
    def is_close(self) -> bool:
        """The same in this precision alone."""
        return self.all.worst() <= self.tolerance and not self.all.mismatches

    def add(self, step: int, differences: Differences) -> None:
        """Take one more step into account."""
        self.all.add(differences)
        if not self.blame and not self.is_close:
            self.blame, self.step = find_blame(differences, self.tolerance), step


def find_blame(found: Differences, tolerance: float) -> str:
    """Where one step's trouble begins."""
    searches = (
        _blame_start(found, tolerance),
        _blame_forward(found, tolerance),
        _blame_number("loss", found.loss, found.mismatches, tolerance),
        *(_blame_number(name, difference, found.mismatches, tolerance) for name, difference in found.metrics.items()),
        _blame_backward(found, tolerance),
        _blame_number("grad_norm", found.grad_norm, found.mismatches, tolerance),
        _blame_update(found, tolerance),
    )
    return next((blame for blame in searches if blame), "")


def _blame_start(found: Differences, tolerance: float) -> str:
    for row in found.rows.values():
        if _is_wrong(row.start, tolerance):
            return f"{row.path}: its starting values differ by {row.start:.1e}"
    return _blame_mismatch(found.mismatches, "start")


def _blame_forward(found: Differences, tolerance: float) -> str:
    for row in found.rows.values():
        if row.routing:
            return f"{row.path}: {row.routing} tokens chose other experts"
        if _is_wrong(row.forward, tolerance):
            return f"{row.path}: its output differs by {row.forward:.1e}"
    return ""


def _blame_backward(found: Differences, tolerance: float) -> str:
    """From the loss backwards: a wrong gradient of an output comes from the module that reads it."""
    reader = "head"
    for row in reversed(found.rows.values()):
        if _is_wrong(row.backward, tolerance):
            return f"{reader}: the gradient it passes back differs by {row.backward:.1e}"
        if _is_wrong(row.gradient, tolerance):
            return f"{row.path}: its gradient differs by {row.gradient:.1e}{_disagreement(row, found.mismatches)}"
        if row.backward is not None:
            reader = row.path
    return _blame_mismatch(found.mismatches, "gradient")


def _blame_update(found: Differences, tolerance: float) -> str:
    for row in found.rows.values():
        if _is_wrong(row.state, tolerance):
            return f"{row.path}: its optimizer state differs by {row.state:.1e}"
        if _is_wrong(row.updated, tolerance):
            return f"{row.path}: its update differs by {row.updated:.1e}"
    return _blame_mismatch(found.mismatches, "state") or _blame_mismatch(found.mismatches, "updated")


def _blame_number(name: str, difference: float, mismatches: list[RankMismatch], tolerance: float) -> str:
    return f"{name}: it differs by {difference:.1e}" if difference > tolerance else _blame_mismatch(mismatches, name)


def _blame_mismatch(mismatches: list[RankMismatch], kind: str) -> str:
    return next((str(entry) for entry in mismatches if entry.kind == kind), "")


def _disagreement(row: ModuleRow, mismatches: list[RankMismatch]) -> str:
    """A hint at a missing sum."""
    is_torn = any(entry.kind == "gradient" and module_of(entry.name) == row.path for entry in mismatches)
    return ", and ranks disagree on it" if is_torn else ""


def _is_wrong(difference: float | None, tolerance: float) -> bool:
    return difference is not None and difference > tolerance
