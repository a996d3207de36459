"""The predicted step as a Chrome trace: what ui.perfetto.dev and chrome://tracing open.

`monograph bench --profile` and `--profiler.start` write measured ones in the same form; join_traces.py puts both into
one file.
"""

import itertools
from typing import Any

from monograph.execute.trace_marks import ELSEWHERE
from monograph.graph.query import group_of, is_launch, name_of
from monograph.graph.tags import Tag, find_tag
from monograph.graph.timeline import Span, Timeline
from monograph.parallel.pipeline.simulate import Simulation

_MICROSECONDS = 1e6


def make_trace(timeline: Timeline, *, name: str) -> dict[str, Any]:
    """One process with a thread for compute and one for the collectives of every group; times in microseconds.

    Nodes of one module that follow each other lie in a slice with the module's path.
    """
    lanes = dict.fromkeys(["compute", *sorted(span.lane for span in timeline.spans if span.lane != "compute")])
    threads = {lane: number for number, lane in enumerate(lanes)}
    events = name_process(name, threads)
    compute = [span for span in timeline.spans if span.lane == "compute"]
    for (module, direction), run in itertools.groupby(compute, key=find_module):
        found = list(run)
        facts = {"module": module, "direction": direction}
        times = (found[0].start_seconds, found[-1].end_seconds)
        events.append(make_slice(f"{module or ELSEWHERE} {direction}", 0, *times, "module", facts))
    for span in timeline.spans:
        facts = describe_span(span)
        kind = "collective" if is_launch(span.node) else "compute"
        op = name_of(span.node) or span.node.name
        events.append(make_slice(op, threads[span.lane], span.start_seconds, span.end_seconds, kind, facts))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def make_pipeline_trace(simulation: Simulation, *, name: str) -> dict[str, Any]:
    """One process with a thread for every rank of the pipeline, and a counter of its memory."""
    events = name_process(name, {f"rank {rank}": rank for rank in range(len(simulation.spans))})
    for rank, (spans, live) in enumerate(zip(simulation.spans, simulation.live_bytes, strict=True)):
        for span, count in zip(spans, live, strict=True):
            kind = span.action.kind.name.lower()
            facts = {"stage": span.action.stage, "micro_batch": span.action.micro_batch}
            events.append(make_slice(str(span.action), rank, span.start, span.end, kind, facts))
            counter = {
                "ph": "C",
                "pid": 0,
                "tid": rank,
                "name": f"memory of rank {rank}",
                "ts": span.start * _MICROSECONDS,
            }
            events.append(counter | {"args": {"GiB": count / 2**30}})
    return {"displayTimeUnit": "ms", "traceEvents": events}


def name_process(name: str, threads: dict[str, int]) -> list[dict[str, Any]]:
    """The names of process 0 and of its threads."""
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": name}}]
    for lane, number in threads.items():
        for kind, value in (("thread_name", {"name": lane}), ("thread_sort_index", {"sort_index": number})):
            events.append({"ph": "M", "pid": 0, "tid": number, "name": kind, "args": value})
    return events


def make_slice(
    name: str, thread: int, start: float, end: float, category: str, facts: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A complete event of process 0. Viewers count whole nanoseconds and drop a slice that ends one after the slice it
    lies in: both ends are rounded here, a tenth above, so that what viewers cut off is nothing."""
    first, last = round(start * 1e9), round(end * 1e9)
    times = {"ts": (first + 0.1) / 1000, "dur": (last - first + 0.1) / 1000}
    return {"ph": "X", "pid": 0, "tid": thread, "name": name, "cat": category, **times, "args": facts or {}}


def find_module(span: Span) -> tuple[str, str]:
    """The module's path and the direction; the path is empty outside of the model."""
    tag = find_tag(span.node) or Tag()
    return tag.path, tag.direction.value


def describe_span(span: Span) -> dict[str, Any]:
    """What a viewer shows of a node."""
    module, direction = find_module(span)
    tag = find_tag(span.node)
    facts: dict[str, Any] = {"module": module, "direction": direction}
    if tag and tag.role:
        facts["role"] = tag.role.value
    if is_launch(span.node):
        facts |= {"group": group_of(span.node), "exposed_us": span.exposed_seconds * _MICROSECONDS}
    return facts
