"""The predicted step as a Chrome trace: what ui.perfetto.dev and chrome://tracing open, beside one that was measured.

`monograph bench --profile` and `--profiler.start` write measured ones in the same form.
"""

from typing import Any

from monograph.graph.query import group_of, is_launch, name_of
from monograph.graph.tags import find_tag
from monograph.graph.timeline import Timeline

_MICROSECONDS = 1e6


def make_trace(timeline: Timeline, *, name: str) -> dict[str, Any]:
    """One process with a thread for compute and one for the collectives of every group; times in microseconds."""
    lanes = dict.fromkeys(["compute", *sorted(span.lane for span in timeline.spans if span.lane != "compute")])
    threads = {lane: number for number, lane in enumerate(lanes)}
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": name}}]
    events += [
        {"ph": "M", "pid": 0, "tid": number, "name": "thread_name", "args": {"name": lane}}
        for lane, number in threads.items()
    ]
    for span in timeline.spans:
        tag = find_tag(span.node)
        facts: dict[str, Any] = {"module": tag.path, "direction": tag.direction.value} if tag else {}
        if tag and tag.role:
            facts["role"] = tag.role.value
        if is_launch(span.node):
            facts |= {"group": group_of(span.node), "exposed_us": span.exposed_seconds * _MICROSECONDS}
        events.append(
            {
                "ph": "X",
                "pid": 0,
                "tid": threads[span.lane],
                "name": name_of(span.node) or span.node.name,
                "cat": "collective" if is_launch(span.node) else "compute",
                "ts": span.start_seconds * _MICROSECONDS,
                "dur": (span.end_seconds - span.start_seconds) * _MICROSECONDS,
                "args": facts,
            }
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}
