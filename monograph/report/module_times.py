"""Time of each module in a measured trace, beside what was predicted for it. Loads without torch.

A kernel belongs to the module whose range was open when it was launched; on a CPU, the same holds for each op that no
other op called. Kernels of a replayed CUDA graph are launched together, without ranges: they take their modules from a
trace of the same step run op by op, where the n-th kernel of a name is the n-th of that name in the replay.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from monograph.execute.trace_marks import ELSEWHERE, MARK

Event = dict[str, Any]
RANGE = re.compile(rf"{re.escape(MARK)}(.+) (forward|backward)")
_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_COLLECTIVE = re.compile(r"nccl|c10d", re.IGNORECASE)
_BLOCK = re.compile(r"\.\d+(?=\.|$)")
_UNNAMED = ("", "gradients", ELSEWHERE)
"""Names of nodes that belong to no module."""
_SLACK = 1e-3
"""Microseconds by which rounding may make a range end before what lies in it."""


class Module(NamedTuple):
    """A module's path and the direction; the path is empty outside of the model."""

    path: str
    direction: str


@dataclass(frozen=True)
class TimedEvent:
    """A kernel or op whose time counts, and its module if that is known."""

    event: Event
    module: Module | None


@dataclass(frozen=True)
class ModuleTimes:
    """Seconds of equal modules of all blocks in one direction."""

    module: Module
    predicted: float
    measured: float


def find_timed_events(events: Sequence[Event], named: Sequence[Event] = ()) -> list[TimedEvent]:
    """Everything in a step that takes time, with its module; `named` is the same step run op by op."""
    timed = _attribute(events)
    if not named or all(each.module is not None for each in timed):
        return timed
    return _name_by_order(timed, _attribute(named))


def compare_modules(predicted: Iterable[Event], measured: Iterable[TimedEvent]) -> tuple[list[ModuleTimes], float]:
    """Rows of all modules, the largest difference first, and the seconds that belong to no known module.

    Collectives are left out on both sides: how long one takes depends on when the other ranks arrive.
    """
    expected: defaultdict[Module, float] = defaultdict(float)
    for event in predicted:
        if event["ph"] == "X" and event.get("cat") == "compute":
            facts = event.get("args") or {}
            expected[_fold(str(facts.get("module", "")), str(facts.get("direction", "")))] += event.get("dur", 0) / 1e6
    found: defaultdict[Module, float] = defaultdict(float)
    unknown = 0.0
    for each in measured:
        seconds = each.event.get("dur", 0) / 1e6
        if _COLLECTIVE.search(str(each.event.get("name"))):
            continue
        if each.module is None:
            unknown += seconds
        else:
            found[_fold(*each.module)] += seconds
    rows = [ModuleTimes(module, expected[module], found[module]) for module in dict.fromkeys([*expected, *found])]
    return sorted(rows, key=lambda row: -abs(row.measured - row.predicted)), unknown


def _fold(path: str, direction: str) -> Module:
    """The same name for equal modules of all blocks."""
    return Module("" if path in _UNNAMED else _BLOCK.sub(".*", path), direction)


def _attribute(events: Sequence[Event]) -> list[TimedEvent]:
    """Kernels with the module that launched them; ops, where there are no kernels."""
    slices = [event for event in events if event["ph"] == "X"]
    by_thread: defaultdict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for event in slices:
        if event.get("cat") in ("cpu_op", "user_annotation", *_LAUNCHES):
            by_thread[event["pid"], event.get("tid")].append(event)
    threads = [sorted(each, key=lambda event: (event["ts"], -event.get("dur", 0))) for each in by_thread.values()]
    forward: dict[int, Module] = {}
    for thread in threads:  # autograd may run backward on another thread: forward has to be known first
        _walk(thread, forward, is_first=True)
    launches: dict[int, Module] = {}
    ops = [timed for thread in threads for timed in _walk(thread, forward, launches)]
    kernels = [event for event in slices if event.get("cat") in _KERNELS]
    if not kernels:
        return ops
    return [TimedEvent(event, launches.get(_read_number(event, "correlation"))) for event in kernels]


def _walk(
    thread: Sequence[Event],
    forward: dict[int, Module],
    launches: dict[int, Module] | None = None,
    *,
    is_first: bool = False,
) -> list[TimedEvent]:
    """Ops of a thread that no other op called. Fills `forward` (sequence number -> module) in the first walk, and
    `launches` (correlation -> module) in the second."""
    open_events: list[tuple[float, Module | None, bool]] = []
    ops = []
    for event in thread:
        while open_events and open_events[-1][0] <= event["ts"] + _SLACK:
            open_events.pop()
        _, module, is_inside_op = open_events[-1] if open_events else (0.0, None, False)
        marked = RANGE.fullmatch(str(event.get("name")))
        sequence = _read_number(event, "Sequence number")
        if marked:
            module = Module(marked[1], marked[2])
        elif is_first and module is not None and module.direction == "forward" and sequence >= 0:
            forward.setdefault(sequence, module)
        elif module is None and sequence in forward:
            module = Module(forward[sequence].path, "backward")
        is_op = event.get("cat") == "cpu_op" and not marked
        if is_op and not is_inside_op:
            ops.append(TimedEvent(event, module))
        elif event.get("cat") in _LAUNCHES and module is not None and launches is not None:
            launches[_read_number(event, "correlation")] = module
        open_events.append((event["ts"] + event.get("dur", 0), module, is_op or is_inside_op))
    return ops


def _name_by_order(timed: list[TimedEvent], named: list[TimedEvent]) -> list[TimedEvent]:
    """The same with modules for kernels that have none. A replay of several micro-batches has each kernel that many
    times; where counts do not divide, order tells nothing, and kernels of that name stay without a module."""
    known: defaultdict[str, list[Module | None]] = defaultdict(list)
    for each in sorted(named, key=lambda each: _find_order(each.event)):
        known[str(each.event.get("name"))].append(each.module)
    counts = Counter(str(each.event.get("name")) for each in timed if each.module is None)
    taken: Counter[str] = Counter()
    modules: dict[int, Module | None] = {}
    for each in sorted(timed, key=lambda each: _find_order(each.event)):
        name = str(each.event.get("name"))
        choices = known.get(name, [])
        if each.module is None and choices and counts[name] % len(choices) == 0:
            modules[id(each.event)] = choices[taken[name] % len(choices)]
            taken[name] += 1
    return [TimedEvent(each.event, each.module or modules.get(id(each.event))) for each in timed]


def _find_order(event: Event) -> tuple[int, float]:
    """The launch, then the start. Replayed graphs keep the order of their kernels on one stream."""
    return _read_number(event, "correlation"), event["ts"]


def _read_number(event: Event, name: str) -> int:
    """A whole number among the facts of an event; -1 where it is none."""
    value = (event.get("args") or {}).get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else -1
