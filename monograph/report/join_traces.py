"""A predicted and a measured step in one Chrome trace, side by side: both begin at 0 and name modules alike. Loads
without torch."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from monograph.errors import ConfigError
from monograph.execute.trace_marks import STEP_MARK
from monograph.report.module_times import RANGE, ModuleTimes, compare_modules, find_timed_events
from monograph.system.foreign_json import UnusableFile, read_file
from monograph.system.foreign_text import show

_STEP = re.compile(rf"{STEP_MARK}( \d+)?")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
_MAKE_ONE = (
    "predicted/predicted.trace.json comes from `monograph inspect RECIPE --out predicted`, "
    "measured/exact.trace.json from `monograph bench RECIPE --modes exact --profile measured`"
)
Event = dict[str, Any]
MAX_TRACE_BYTES = 2 << 30
"""Far above the trace of a step; many steps of many threads may come to gigabytes."""


class Interval(NamedTuple):
    """A time between two timestamps, in microseconds."""

    start: float
    end: float

    def holds(self, event: Event) -> bool:
        """Whether an event lies inside, whole."""
        return self.start <= event["ts"] and event["ts"] + event.get("dur", 0) <= self.end


def read_trace(path: str) -> list[Event]:
    """The events of a trace that have a time and a process, and the names of processes and threads."""
    try:
        trace = json.loads(read_file(Path(path), max_bytes=MAX_TRACE_BYTES))  # profilers may write a key twice
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        if not isinstance(events, list):
            raise TypeError("traceEvents is not a list")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", do=_MAKE_ONE) from None
    except UnusableFile as error:
        raise ConfigError(error.what, why=error.why, do=_MAKE_ONE) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{path} is not a Chrome trace", why="there are no traceEvents in it") from None
    for event in events:
        if reason := find_defect(event):
            raise ConfigError(
                f"{path} is not a Chrome trace", why=f"{reason} in the event {show(event, max_length=120)}"
            )
    return [event for event in events if "ph" in event]


def find_defect(event: Any) -> str:
    """The first field that a joined trace needs and that is missing or of another kind; empty when there is none."""
    if not isinstance(event, dict):
        return "there is no object"
    if "ph" not in event:
        return ""
    facts = event.get("args") or {}
    if not isinstance(event.get("pid"), int | float | str) or not isinstance(event.get("tid", 0), int | float | str):
        return "pid or tid is neither a number nor a name"
    if not isinstance(facts, dict):
        return "args is not an object"
    if event["ph"] == "M":
        is_named = isinstance(event.get("name"), str) and (event["name"] != "process_name" or "name" in facts)
        return "" if is_named else "a name is missing"
    if not isinstance(event.get("ts"), int | float) or not isinstance(event.get("dur", 0), int | float):
        return "ts or dur is not a number"
    return "dur is missing" if _STEP.fullmatch(str(event.get("name"))) and "dur" not in event else ""


class JoinedTraces(NamedTuple):
    """Two steps in one trace, and the time of each module in both."""

    trace: dict[str, Any]
    rows: list[ModuleTimes]
    """The largest difference first."""
    unknown_seconds: float
    """Measured in kernels and ops of no known module: the optimizer, copies of data."""


def join_traces(
    predicted: list[Event], measured: list[Event], *, name: str = "the measured trace", named: list[Event] | None = None
) -> JoinedTraces:
    """Both, as processes of their own: the predicted first, then the last step that was measured; errors say `name`.

    `named` is a measured trace of the same step run op by op, which has the modules that a replayed CUDA graph lacks.
    """
    step = cut_step(measured, name)
    timed = find_timed_events(step, cut_step(named, "--names") if named is not None else ())
    for each in timed:
        if each.module is not None:
            facts = {"module": each.module.path, "direction": each.module.direction}
            each.event["args"] = (each.event.get("args") or {}) | facts
    rows, unknown = compare_modules(predicted, timed)
    events = renumber(predicted, 0, "predicted") + renumber(step, 1000, "measured")
    return JoinedTraces({"displayTimeUnit": "ms", "traceEvents": events}, rows, unknown)


def cut_step(events: list[Event], name: str = "the measured trace") -> list[Event]:
    """The events of the last whole step, with times that begin at its start. What runs on a device counts by the step's
    range there, which begins and ends later than on the host."""
    steps = [event for event in events if event["ph"] == "X" and _STEP.fullmatch(str(event.get("name")))]
    host = [event for event in steps if event.get("cat") not in _ON_DEVICE]
    if not host:
        raise ConfigError(
            f"{name} has no step in it",
            why=f"steps are ranges with the name {STEP_MARK}",
            do="measure it with monograph bench --profile, or train with --profiler.start",
        )
    last = max(host, key=lambda event: event["ts"])
    on_host = Interval(last["ts"], last["ts"] + last["dur"])
    same = [event for event in steps if event.get("cat") in _ON_DEVICE and event["name"] == last["name"]]
    on_device = on_host
    if same:
        latest = max(same, key=lambda event: event["ts"])
        on_device = Interval(latest["ts"], latest["ts"] + latest["dur"])
    kept = []
    for event in events:
        if event["ph"] == "M":
            kept.append(event)
        elif (on_device if event.get("cat") in _ON_DEVICE else on_host).holds(event):
            kept.append(event | {"ts": event["ts"] - on_host.start})  # a copy, to which modules are added
    return kept


def renumber(events: list[Event], first: int, kind: str) -> list[Event]:
    """The same with processes numbered from `first`, named after what they are; module ranges say their module."""
    used = dict.fromkeys(event["pid"] for event in events if event["ph"] != "M")
    numbers = {pid: first + index for index, pid in enumerate(used)}
    titles = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "process_name"
    }
    found: list[Event] = []
    for pid, number in numbers.items():
        for name, value in (
            ("process_name", {"name": f"{kind}: {titles.get(pid, pid)}"}),
            ("process_sort_index", {"sort_index": number}),
        ):
            found.append({"ph": "M", "pid": number, "name": name, "args": value})
    threads: dict[tuple[Any, Any], int] = {}
    for event in events:
        if event["pid"] not in numbers or (event["ph"] == "M" and not event["name"].startswith("thread_")):
            continue
        thread = threads.setdefault((event["pid"], event.get("tid")), len(threads) + first)
        found.append(name_module(event) | {"pid": numbers[event["pid"]], "tid": thread})
    return found


def name_module(event: Event) -> Event:
    """A measured range of a module in the form of a predicted one."""
    module = RANGE.fullmatch(str(event.get("name")))
    if not module:
        return event
    facts = {"module": module[1], "direction": module[2]}
    return event | {"name": f"{module[1]} {module[2]}", "args": (event.get("args") or {}) | facts}
