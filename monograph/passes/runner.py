"""Runs the passes in order: checks the graph after each, and records what each did, also when it did nothing."""

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from monograph.config.references import load_reference
from monograph.errors import MonographError
from monograph.graph.changes import Snapshot, find_changes, take_snapshot
from monograph.graph.cost import Cost, CostMeter
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.graph.verify import check_graph
from monograph.log import get_log
from monograph.passes.base import Pass, Property
from monograph.passes.config import PassesConfig
from monograph.passes.options import Numerics
from monograph.passes.order import PassEntry

log = get_log("passes")


Watch = Callable[["PassRecord", StepGraph], None]


class PassFailed(MonographError):
    """A pass raised an exception, or left a graph that the checks refuse."""


@dataclass(frozen=True, kw_only=True)
class PassRecord:
    """What one pass did, in numbers."""

    name: str
    status: Literal["ran", "skipped", "off"]
    note: str
    """What was done, or why nothing was."""
    options: dict[str, Any]
    seconds: float
    added: int
    removed: int
    moved: int
    before: Cost | None
    """The graph's estimated cost; None where it was not measured."""
    after: Cost | None
    reads_machine: bool = False
    """Whether what was done depends on the machine."""


@dataclass(frozen=True)
class OptimizedGraph:
    """A graph after its passes, with their records; one that was read from an artifact has none."""

    graph: StepGraph
    records: Sequence[PassRecord] = ()
    capture_seconds: float = 0.0
    ran_before: Sequence[str] = ()
    """Names of the passes that ran when an artifact was made."""

    @property
    def ran(self) -> Sequence[str]:
        """Names of the passes that changed the graph, here or where it was made."""
        return [*self.ran_before, *(record.name for record in self.records if record.status == "ran")]


@dataclass(frozen=True)
class MeasuredGraph:
    """A graph between two passes."""

    snapshot: Snapshot
    cost: Cost | None


def build_passes(config: PassesConfig, numerics: Numerics = "exact") -> list[Pass]:
    """All passes in order with their options; those that do not run say why in `off`."""
    off = config.find_off(numerics)
    return [
        load_pass(entry)(config.options_of(name), off=off.get(name, ""), is_asked=config.is_asked(name))
        for name, entry in config.order.items()
    ]


def load_pass(entry: PassEntry) -> type[Pass]:
    """The class that an entry of the order names."""
    found: type[Pass] = entry.loaded or load_reference(entry.reference)
    return found


def run_passes(
    graph: StepGraph,
    passes: Sequence[Pass],
    facts: Facts,
    *,
    watch: Watch | None = None,
    is_measured: bool = True,
    is_checked: bool = True,
) -> list[PassRecord]:
    """Run the passes on the graph, which they change in place; every one of them leaves a record, in order.

    Without `is_measured` the records lack costs, which take a third of the time to estimate. `is_checked` may be off
    only for a graph that is estimated and never run.
    """
    has: set[Property] = set()
    records: list[PassRecord] = []
    meter = CostMeter(facts) if is_measured else None
    now = MeasuredGraph(take_snapshot(graph), meter.measure(graph) if meter else None)
    if is_checked:
        check_graph(graph, facts)
    for each in passes:
        record, now = run_pass(each, graph, facts, has=has, before=now, meter=meter, is_checked=is_checked)
        if record.status == "ran":
            has |= set(each.provides)
        log.debug("%s: %s (%.2f s): %s", record.name, record.status, record.seconds, record.note)
        records.append(record)
        if watch is not None:
            watch(record, graph)
    graph.module.recompile()
    return records


@contextmanager
def _named(each: Pass) -> Iterator[None]:
    """Raise PassFailed for an exception of somebody's own pass; note the name of the pass on one of ours."""
    try:
        yield
    except MonographError:
        raise
    except Exception as error:
        if type(each).__module__.startswith("monograph."):
            error.add_note(f"in pass {each.name()}")
            raise
        raise describe_failure(each.name(), error) from error


def describe_failure(name: str, error: Exception) -> PassFailed:
    """The exception of a pass in words, with the lines that it came through in place of a traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    lines = dict.fromkeys(f"{frame.filename}:{frame.lineno}: {frame.line}" for frame in (*frames[:1], *frames[-1:]))
    return PassFailed(
        f"pass {name} failed",
        why=f"{type(error).__name__}: {error}; at {' -> '.join(lines)}",
        do=f"repair it (monograph check-pass tries it alone), or --passes.off {name} runs the step without it",
    )


def run_pass(
    each: Pass,
    graph: StepGraph,
    facts: Facts,
    *,
    has: set[Property],
    before: MeasuredGraph,
    meter: CostMeter | None,
    is_checked: bool = True,
) -> tuple[PassRecord, MeasuredGraph]:
    """Run one pass, unless it is off, has nothing to do here, or lacks what an earlier one gives.

    Only what the pass changed is checked and measured anew.
    """
    missing = [need.value for need in each.requires if need not in has]
    reason = each.off or each.skip(facts) or (f"needs {', '.join(missing)}" if missing else "")
    told: dict[str, Any] = {"name": each.name(), "options": dataclasses.asdict(each.config), "before": before.cost}
    if reason:
        status: Literal["off", "skipped"] = "off" if each.off else "skipped"
        nothing: dict[str, Any] = {"seconds": 0.0, "added": 0, "removed": 0, "moved": 0}
        return PassRecord(**told, **nothing, status=status, note=reason, after=before.cost), before
    start = time.perf_counter()
    with _named(each):
        note = each.run(graph, facts)
    seconds = time.perf_counter() - start
    snapshot = take_snapshot(graph)
    changes = find_changes(before.snapshot, snapshot)
    if is_checked and not changes.is_nothing:
        check_graph(graph, facts, changes)
    after = before.cost
    if meter is not None and not changes.is_nothing:
        after = meter.measure(graph, changes.touched)
    counts: dict[str, Any] = {"added": changes.added, "removed": changes.removed, "moved": changes.moved}
    told |= {"note": note, "seconds": seconds, "after": after, "reads_machine": each.reads_machine(facts)}
    return PassRecord(**told, **counts, status="ran"), MeasuredGraph(snapshot, after)
