"""Whether a pass keeps its promises on some models: graph rules, idempotent, equal ranks, numerics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from monograph.checks.captured_model import RANKS, CapturedModel, CheckedStep, alone, as_rank, run_step
from monograph.checks.numbers import TOLERANCE, Difference, find_differences
from monograph.config.references import describe_exception
from monograph.errors import MonographError
from monograph.graph.step_graph import StepGraph
from monograph.parallel.groups import find_first_difference
from monograph.passes.base import Pass
from monograph.passes.check import RepeatedRun, clone_graph, run_again
from monograph.passes.config import PassesConfig
from monograph.passes.runner import OptimizedGraph, PassRecord, build_passes, run_passes

Status = Literal["ok", "nothing to do", "not tested", "refused"]

NUMERICS = ("bitwise", "within rounding")
"""The check of what a pass promises about numerics."""


@dataclass(frozen=True)
class CheckRow:
    """One line of the report."""

    model: str
    check: str
    status: Status
    note: str


class PassRefused(Exception):
    """A promise that a pass did not keep; the text says which."""


class PassWatch:
    """Looks at one pass while all of them run: what it changed, and whether a second run changes more."""

    def __init__(self, passes: Sequence[Pass], name: str, step: CheckedStep, graph: StepGraph) -> None:
        self.names = [each.name() for each in passes]
        self.each, self.facts = passes[self.names.index(name)], step.facts
        self.before = graph.text(folded=False)
        self.record: PassRecord | None = None
        self.is_changed = False

    def __call__(self, record: PassRecord, graph: StepGraph) -> None:
        index = self.names.index(self.each.name())
        if index and record.name == self.names[index - 1]:
            self.before = graph.text(folded=False)
        if record.name != self.each.name():
            return
        self.record = record
        if record.status == "ran":
            found = run_again(self.each, graph, self.facts)
            check_repeated(found)
            self.is_changed = found.once != self.before

    @property
    def note(self) -> str:
        """What the pass said about its work, or why it was skipped."""
        assert self.record is not None, "nothing ran"
        return self.record.note if self.record.status == "ran" else f"{self.record.status}: {self.record.note}"


def check_repeated(found: RepeatedRun) -> None:
    """Refuse a pass whose second run changes the graph again."""
    if found.once != found.twice:
        where = find_first_difference(found.once, found.twice)
        raise PassRefused(f"it is not idempotent: a second run changes the graph, at {where}")


def check_kind(kind: Any, models: Sequence[CapturedModel]) -> list[CheckRow]:
    """Every check of a pass on every model; of a model on which it is refused, no further ones."""
    rows = [row for model in models for row in check_on(model, kind)]
    if all(row.status in ("nothing to do", "not tested") for row in rows):
        note = "it changes none of these graphs, so nothing was tested: --model RECIPE names one that it does change"
        rows.append(CheckRow("all", "has something to do", "refused", note))
    return rows


def check_on(model: CapturedModel, kind: Any) -> Iterator[CheckRow]:
    """The checks of a pass on one model, until one refuses it."""
    config = PassesConfig(extra=(kind,), on=(kind.name(),))
    check = ""
    try:
        check = "graph rules, idempotent"
        with alone():
            watch, optimized = run_watched(model.alone, config, kind)
        yield make_row(model, check, watch)
        check = f"equal text on ranks {RANKS[0]} and {RANKS[1]}"
        yield make_row(model, check, check_ranks(model, config, kind))
        check = NUMERICS[0] if kind.bitwise else NUMERICS[1]
        if not watch.is_changed:
            yield CheckRow(model.name, check, "not tested", "it changes nothing on one rank")
            return
        with alone():
            numbers = run_step(model.source, model.inputs, optimized)
        found = find_differences(model.baseline, numbers)
        yield CheckRow(model.name, check, "ok", judge(found, is_bitwise=kind.bitwise))
    except PassRefused as error:
        yield CheckRow(model.name, check, "refused", str(error))
    except MonographError as error:
        yield CheckRow(model.name, check, "refused", "; ".join(filter(None, (error.what, error.why))))
    except Exception as error:
        yield CheckRow(model.name, check, "refused", describe_exception(error))


def check_ranks(model: CapturedModel, config: PassesConfig, kind: Any) -> PassWatch:
    """Run all passes as two ranks of a mesh, on the graph they share; it must stay the same."""
    texts = []
    for rank in RANKS:
        with as_rank(rank, model.mesh):
            watch, optimized = run_watched(model.on_mesh, config, kind)
            texts.append(optimized.graph.text(folded=False))
    if texts[0] != texts[1]:
        raise PassRefused(f"it depends on the rank, at {find_first_difference(*texts)}")
    return watch


def judge(found: Sequence[Difference], *, is_bitwise: bool) -> str:
    """What was found, in words; PassRefused when it is more than the pass promised."""
    if not found:
        return "loss and every gradient are bitwise identical"
    if is_bitwise:
        others = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise PassRefused(f"bitwise is True, and {found[0]}{others}")
    worst = max(found, key=lambda each: each.relative)
    if not worst.relative <= TOLERANCE:
        raise PassRefused(f"{worst}, more than rounding explains")
    return f"at most {worst.relative:.1e} relative, in {worst.name}"


def run_watched(step: CheckedStep, config: PassesConfig, kind: Any) -> tuple[PassWatch, OptimizedGraph]:
    """All passes on a copy of a graph, with an eye on one of them."""
    graph, passes = clone_graph(step.graph), build_passes(config)
    watch = PassWatch(passes, kind.name(), step, graph)
    records = run_passes(graph, passes, step.facts, watch=watch, is_measured=False)
    return watch, OptimizedGraph(graph, records)


def make_row(model: CapturedModel, check: str, watch: PassWatch) -> CheckRow:
    """The row of a check that found nothing wrong."""
    return CheckRow(model.name, check, "ok" if watch.is_changed else "nothing to do", watch.note)
