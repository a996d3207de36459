"""Goodput: how much of a job's time went into steps that count, over all of its starts. Loads without torch.

Each record of metrics.jsonl says where the seconds of its process went so far. Records that a restart drops, because
their steps are done again, are summed up in goodput.jsonl first: one line for every start, and one for how the start
before it had ended. A process that ends in an orderly way adds a last line, because validation, checkpoints and waiting
for saves can follow its last record.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monograph import strict_json
from monograph.line_file import LineFile
from monograph.log import get_log
from monograph.plurals import counted
from monograph.system.foreign_json import UnusableFile, parse_json, read_file
from monograph.train.records import find_number, read_records
from monograph.train.startup import Startup, seconds_since_process_start

log = get_log("goodput")
FILE = "goodput.jsonl"
START_UP, COMPILE, STEPS, DATA = "start_up", "compile", "steps", "data"
CHECKPOINT, VALIDATION, CHECKS = "checkpoint", "validation", "checks"
KINDS = (START_UP, COMPILE, STEPS, DATA, CHECKPOINT, VALIDATION, CHECKS)
"""Where the seconds of a process go: before the first step, into the graph (tracing, passes, compiling, or reading an
artifact), steps, waiting for data, saving as far as steps wait for it, validation, `debug.replay_every`."""
_COMPILE_PHASES = ("graph", "artifact")


class GoodputClock:
    """Divides the time of this process; what nothing else claims belongs to the steps."""

    def __init__(self, startup: Startup) -> None:
        self._startup = startup
        self._seconds: dict[str, float] = defaultdict(float)
        self._begin = time.perf_counter()
        self.started_at = time.time()

    def start(self) -> None:
        """Training begins: everything until now was start-up."""
        phases = self._startup.seconds
        elapsed = min(seconds_since_process_start() or float("inf"), sum(phases.values()))
        self._seconds[COMPILE] = min(elapsed, sum(phases.get(name, 0.0) for name in _COMPILE_PHASES))
        self._seconds[START_UP] = elapsed - self._seconds[COMPILE]
        self.started_at = time.time() - elapsed
        self._begin = time.perf_counter()

    def seconds_since_start(self) -> float:
        """Seconds since training began."""
        return time.perf_counter() - self._begin

    @contextmanager
    def phase(self, kind: str) -> Iterator[None]:
        """Time something that is no step."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[kind] += time.perf_counter() - start

    def read(self) -> dict[str, float]:
        """Seconds by kind, so far."""
        others = sum(self._seconds[kind] for kind in (DATA, CHECKPOINT, VALIDATION, CHECKS))
        steps = time.perf_counter() - self._begin - others
        return {kind: round(steps if kind == STEPS else self._seconds[kind], 3) for kind in KINDS}


class GoodputFile:
    """goodput.jsonl of a run's folder; only the first rank writes it, before metrics.jsonl is shortened."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines = LineFile(folder / FILE)
        self._is_open = False

    def start(self, clock: GoodputClock, *, step: int, ranks: int) -> None:
        """Note how the start before this one ended, and that this one continues after `step`."""
        if ended := describe_end(self._folder, kept_step=step):
            self._lines.write(strict_json.dump(ended))
        begun = {"event": "start", "time": round(clock.started_at, 3), "step": step, "ranks": ranks}
        self._lines.write(strict_json.dump(begun))
        self._is_open = True  # kept open: a folder that has this name at the end may be another run's
        self._warn()

    def finish(self, clock: GoodputClock) -> None:
        """Note where the time of this process went until now, after its last record. Safe to call twice."""
        if not self._is_open:
            return
        self._is_open = False
        finished = {"event": "finish", "time": round(time.time(), 3), "seconds": clock.read()}
        self._lines.write(strict_json.dump(finished))
        self._lines.close()
        self._warn()

    def _warn(self) -> None:
        if self._lines.error is not None:
            log.warning("%s cannot be written (%s)", FILE, self._lines.error.strerror)


def describe_end(
    folder: Path, *, kept_step: int, records: Sequence[dict[str, Any]] | None = None
) -> dict[str, Any] | None:
    """How the last process in this folder ended, from its records and its last line; None when it left no record."""
    try:
        events = read_events(folder)
        finish = events.pop() if events and events[-1]["event"] == "finish" else {}
        if not events or events[-1]["event"] != "start":
            return None
        found = read_records(folder / "metrics.jsonl") if records is None else records
    except (OSError, UnusableFile):
        return None
    records = [record for record in found if is_measured(record)]
    mine = [record for record in records if record["time"] >= events[-1]["time"]]
    if not mine:
        return None
    last, kept = mine[-1], [record for record in mine if record["step"] <= kept_step]
    lost = [record for record in records if record["step"] > kept_step]
    earlier = [record for record in lost if record["time"] < events[-1]["time"]]
    before = sum(record["ms"] for record in earlier if find_number(record.get("ms")) is not None) / 1000
    lost_seconds = last["goodput"][STEPS] - (kept[-1]["goodput"][STEPS] if kept else 0.0) + before
    return {
        "event": "end",
        "time": finish.get("time", last["time"]),
        "step": last["step"],
        "seconds": finish.get("seconds", last["goodput"]),
        "lost_steps": len(lost),
        "lost_seconds": round(lost_seconds, 3),
    }


def is_measured(record: Mapping[str, Any]) -> bool:
    """Whether a record of metrics.jsonl says where the time of its process went, in numbers."""
    return all(find_number(record.get(name)) is not None for name in ("time", "ms")) and _is_time(record.get("goodput"))


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The lines of goodput.jsonl; what a killed process left of a line is passed over, as is what is no event.

    Raises UnusableFile for a FIFO, a device or a file that is too large.
    """
    try:
        lines = read_file(folder / FILE).split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            event = parse_json(line, FILE, kind=dict)
        except ValueError:
            continue
        if _is_event(event):
            found.append(event)
    return found


def _is_event(event: Mapping[str, Any]) -> bool:
    needed = {
        "start": ["time", "step"],
        "finish": ["time"],
        "end": ["time", "step", "lost_steps", "lost_seconds"],
    }
    kind = event.get("event")
    if not isinstance(kind, str) or kind not in needed:
        return False
    return all(find_number(event.get(name)) is not None for name in needed[kind]) and (
        kind == "start" or _is_time(event.get("seconds"))
    )


def _is_time(seconds: Any) -> bool:
    """Whether this is seconds by kind, those of steps among them."""
    return (
        isinstance(seconds, dict)
        and STEPS in seconds
        and all(find_number(each) is not None for each in seconds.values())
    )


@dataclass
class GoodputSummary:
    """A job's time over all of its starts."""

    starts: int = 0
    last_step: int = 0
    total_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    """By kind, of all processes; `steps` without those that were lost."""
    lost_steps: int = 0
    lost_seconds: float = 0.0
    restart_seconds: float = 0.0
    """From the last record of a process to the start of the next, and processes that never finished a step."""

    @property
    def goodput(self) -> float:
        """Steps that count over everything."""
        return self.seconds.get(STEPS, 0.0) / self.total_seconds if self.total_seconds else 0.0

    def rows(self) -> list[tuple[str, float]]:
        """Name and seconds of every part; they add up to the total."""
        named = [(kind.replace("_", "-"), self.seconds.get(kind, 0.0)) for kind in (STEPS, *_others())]
        named += [("lost steps", self.lost_seconds), ("restarts", self.restart_seconds)]
        rest = self.total_seconds - sum(seconds for _, seconds in named)
        return [*named, ("other", max(0.0, rest))]

    def describe(self) -> str:
        """One line."""
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.rows() if seconds >= 0.05)
        starts = counted(self.starts, "start")
        return f"{100 * self.goodput:.1f} % of {self.total_seconds:.1f} s in {starts} ({parts})"


def _others() -> tuple[str, ...]:
    return tuple(kind for kind in KINDS if kind != STEPS)


def summarize(folder: Path, records: Sequence[dict[str, Any]] | None = None) -> GoodputSummary | None:
    """The goodput of the job in a run's folder; None where nothing was recorded. `records` are those of metrics.jsonl,
    where they have been read already."""
    events = read_events(folder)
    starts = [event for event in events if event["event"] == "start"]
    if not starts:
        return None
    now = describe_end(folder, kept_step=2**62, records=records)
    events = [event for event in events if event["event"] != "finish"]  # part of the "end" that sums it up
    if now is not None:
        events = [*events, now]
    found = GoodputSummary(starts=len(starts), seconds=dict.fromkeys(KINDS, 0.0))
    for event in events:
        if event["event"] == "end":
            _add_process(found, event)
    ends = [event for event in events if event["event"] == "end"]
    found.total_seconds = max((event["time"] for event in ends), default=starts[0]["time"]) - starts[0]["time"]
    found.last_step = ends[-1]["step"] if ends else 0
    found.restart_seconds = _find_restart_seconds(events)
    return found


def summarize_finished(folder: Path) -> GoodputSummary | None:
    """The goodput of a run that has just finished; a file that cannot be read costs this row of its summary."""
    try:
        return summarize(folder)
    except UnusableFile as error:
        log.warning("%s: %s", error.what, error.why)
        return None


def _find_restart_seconds(events: list[dict[str, Any]]) -> float:
    """Seconds in which no process of the job came to anything; one that left no record ended with nothing."""
    total, idle_since = 0.0, None
    for event, following in itertools.zip_longest(events, events[1:]):
        if event["event"] == "end":
            idle_since = event["time"]
            continue
        if idle_since is not None:
            total += max(0.0, event["time"] - idle_since)
        has_end = following is not None and following["event"] == "end"
        idle_since = None if has_end else event["time"]
    return total


def _add_process(found: GoodputSummary, end: Mapping[str, Any]) -> None:
    for kind, seconds in end["seconds"].items():
        found.seconds[kind] = found.seconds.get(kind, 0.0) + seconds
    found.seconds[STEPS] -= end["lost_seconds"]
    found.lost_steps += end["lost_steps"]
    found.lost_seconds += end["lost_seconds"]
