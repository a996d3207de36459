"""Everything the report says, as plain data: what a graph costs, where its memory goes, collectives and when they run.

The page draws what stands here and computes nothing of its own.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from monograph.graph.cost import NodeCosts, find_node_costs, measure
from monograph.graph.facts import Facts
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.memory import Memory, find_memory
from monograph.graph.query import group_of, is_backward, is_launch
from monograph.graph.signature import InputKind
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.graph.timeline import Span, Timeline, find_timeline
from monograph.passes.runner import PassRecord
from monograph.report.costly_ops import collect_ops
from monograph.report.saved import describe_saved, find_saved, fold_saved, sum_by_block

MAX_POINTS = 2000
"""A curve has no more points than a screen."""
MAX_LINES = 2000
"""Of a difference on the page; the file has all of it."""
_LARGEST = 20


def collect_graph(graph: StepGraph, facts: Facts, *, ideal_seconds: float = 0.0) -> dict[str, Any]:
    """One graph: its cost, costliest ops, memory curve, collectives, time lines and saved values.

    `ideal_seconds` is the time of the step's useful operations at the device's peak, for MFU; 0 leaves MFU out.
    """
    sizes = LikelySizes(graph.module.graph)
    costs = find_node_costs(graph.module.graph, sizes, facts)
    timeline = find_timeline(graph.module.graph, costs.seconds)
    saved = find_saved(graph, sizes)
    return {
        "cost": dataclasses.asdict(measure(graph, facts)),
        "mfu": ideal_seconds / timeline.total_seconds if ideal_seconds else None,
        "ops": collect_ops(costs, timeline, sizes, facts),
        "memory": collect_memory(graph, find_memory(graph, sizes), sizes),
        "collectives": collect_collectives(costs, timeline),
        "timeline": collect_timeline(timeline),
        "saved": saved,
        "saved_rows": fold_saved(saved),
        "saved_by_block": sum_by_block(saved),
    }


def collect_pass(record: PassRecord, *, diff: str, files: Sequence[str]) -> dict[str, Any]:
    """What a pass did, with its difference (the beginning of it, when it is very long) and the files with all of it."""
    lines = diff.splitlines()
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"... {len(lines) - MAX_LINES} more lines in {files[-1]}"]
    return dataclasses.asdict(record) | {"diff": "\n".join(lines), "files": list(files)}


def collect_memory(graph: StepGraph, memory: Memory, sizes: LikelySizes) -> dict[str, Any]:
    """The curve, thinned out, with its peak and who holds the most there."""
    halves = [index for index, node in enumerate(graph.nodes) if is_backward(node)]
    specs = dict(zip(graph.placeholders, graph.inputs, strict=True))
    kinds: dict[str, int] = defaultdict(int)
    for each in memory.held:
        if each.node in specs:
            kinds[specs[each.node].kind.value] += each.bytes
    largest = []
    for each in memory.largest_at_peak(_LARGEST):
        found = describe_saved(each.node, each.part, sizes)
        if each.node in specs:
            found |= {"op": f"input: {specs[each.node].kind.value}", "path": specs[each.node].name}
        largest.append(found)
    return {
        "nodes": len(memory.live_bytes),
        "points": thin_out(memory.live_bytes, MAX_POINTS),
        "backward_index": halves[0] if halves else len(memory.live_bytes),
        "peak_bytes": memory.peak_bytes,
        "peak_index": memory.peak_index,
        "input_bytes": {kind.value: kinds[kind.value] for kind in InputKind if kinds[kind.value]},
        "largest_at_peak": largest,
    }


def thin_out(values: Sequence[int], most: int) -> list[list[int]]:
    """At most `most` points [place, value]: of each stretch the highest, so that the peak stays."""
    stretch = max(1, -(-len(values) // most))
    starts = range(0, len(values), stretch)
    highest = [max(range(start, min(start + stretch, len(values))), key=values.__getitem__) for start in starts]
    return [[index, values[index]] for index in highest]


def collect_collectives(costs: NodeCosts, timeline: Timeline) -> list[dict[str, Any]]:
    """Collectives by what they are for, group and direction: how many, how much, how long, how long compute waits."""
    spans = {span.node: span for span in timeline.spans if is_launch(span.node)}
    found: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for node, moved in costs.moved_bytes.items():
        tag = tag_of(node)
        op = str(node.target).split(".")[1]
        key = (tag.role.value if tag.role else "", group_of(node), tag.direction.value, op)
        names = dict(zip(("role", "group", "direction", "op"), key, strict=True))
        row = found.setdefault(key, names | {"count": 0, "bytes": 0, "seconds": 0.0, "exposed_seconds": 0.0})
        row["count"] += 1
        row["bytes"] += moved
        if node in spans:
            row["seconds"] += spans[node].end_seconds - spans[node].start_seconds
            row["exposed_seconds"] += spans[node].exposed_seconds
    return sorted(found.values(), key=lambda row: -row["seconds"])


def collect_timeline(timeline: Timeline) -> dict[str, Any]:
    """The lanes, compute first, with neighbours of one block joined."""
    lanes: dict[str, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if span.end_seconds > span.start_seconds:
            lanes[span.lane].append(span)
    return {
        "total_seconds": timeline.total_seconds,
        "exposed_seconds": timeline.exposed_seconds,
        "communication_seconds": timeline.communication_seconds,
        "lanes": [
            {"name": name, "spans": join_spans(lanes[name], timeline.total_seconds / MAX_POINTS)}
            for name in sorted(lanes, key=lambda name: (name != "compute", name))
        ],
    }


def join_spans(spans: Sequence[Span], gap_seconds: float) -> list[dict[str, Any]]:
    """Spans of one block, direction and purpose that follow each other without a gap one could see, as one."""
    parts = itertools.pairwise([None, *spans])
    is_first = [a is None or b.start_seconds - a.end_seconds > gap_seconds for a, b in parts if b is not None]
    pieces = zip(itertools.accumulate(is_first), spans, strict=True)
    joined = []
    for (_, direction, block, role), run in itertools.groupby(pieces, key=lambda e: (e[0], *_name_span(e[1].node))):
        found = [span for _, span in run]
        joined.append(
            {
                "direction": direction,
                "block": block,
                "role": role,
                "count": len(found),
                "start": found[0].start_seconds,
                "end": max(span.end_seconds for span in found),
                "exposed": sum(span.exposed_seconds for span in found),
            }
        )
    return joined


def _name_span(node: Node) -> tuple[str, int | None, str]:
    tag = tag_of(node)
    return tag.direction.value, tag.block, tag.role.value if tag.role and is_launch(node) else ""
