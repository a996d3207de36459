"""The ops that take the longest, equal ones of all blocks as one row: their time, what bounds it, and the roofs that
the machine sets."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import Node

from monograph.graph.cost import NodeCosts, count_touched, find_compute_seconds, find_matmul_dtype
from monograph.graph.facts import Facts
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import is_launch
from monograph.graph.tags import make_generic, tag_of
from monograph.graph.timeline import Timeline
from monograph.machine.device import Machine
from monograph.report.saved import describe_saved, name_blocks

MAX_ROWS = 20
BOUNDS = ("compute", "memory", "latency")
_RECOMPUTE = "recompute"


def collect_ops(costs: NodeCosts, timeline: Timeline, sizes: LikelySizes, facts: Facts) -> dict[str, Any]:
    """The costliest rows, the sum of all others, the time of the step by what bounds it, and the roofs: bytes a second,
    and FLOP/s by dtype."""
    machine = facts.machine
    ops = [
        describe_op(node, seconds, costs.flops.get(node, 0), sizes, machine)
        for node, seconds in costs.seconds.items()
        if not is_launch(node)
    ]
    rows = fold_ops(ops)
    for row in rows:
        row["share"] = row["seconds"] / timeline.total_seconds
        row["peak_share"] = row["flops"] / (row["seconds"] * machine.peak_flops(row["compute_dtype"]))
    shown, others = rows[:MAX_ROWS], rows[MAX_ROWS:]
    bounds = {bound: sum(row["seconds"] for row in rows if row["bound"] == bound) for bound in BOUNDS}
    dtypes = dict.fromkeys(row["compute_dtype"] for row in rows if row["flops"])
    return {
        "rows": shown,
        "others": {"rows": len(others), "seconds": sum(row["seconds"] for row in others)},
        "bounds": bounds | {"waiting": timeline.exposed_seconds},
        "bytes_per_second": machine.memory_gb_per_second * 1e9,
        "flops_per_second": {dtype: machine.peak_flops(dtype) for dtype in dtypes},
    }


def describe_op(node: Node, seconds: float, flops: int, sizes: LikelySizes, machine: Machine) -> dict[str, Any]:
    """One node: its module, its work, and which part of its time is the longest."""
    tag, touched = tag_of(node), count_touched(node, sizes)
    times = (
        find_compute_seconds(node, sizes, machine, flops) if flops else 0.0,
        machine.memory_seconds(touched),
        machine.kernel_seconds,
    )
    direction = tag.direction.value
    return describe_saved(node, 0, sizes) | {
        "path": make_generic(tag.path or tag.slot, tag.unit if tag.block is not None else ""),
        "direction": f"{direction}, recomputed" if tag.made_by == _RECOMPUTE else direction,
        "compute_dtype": find_matmul_dtype(node),
        "bound": BOUNDS[times.index(max(times))],
        "seconds": seconds,
        "flops": flops,
        "bytes": touched,
    }


def fold_ops(ops: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Equal ops of many blocks as one row with their sums, the costliest first."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    blocks: dict[tuple[str, ...], set[int]] = {}
    for op in ops:
        key = tuple(str(op[name]) for name in ("path", "op", "direction", "shape", "dtype", "bound"))
        row = rows.setdefault(key, {**op, "count": 0, "seconds": 0.0, "flops": 0, "bytes": 0})
        row["count"] += 1
        for name in ("seconds", "flops", "bytes"):
            row[name] += op[name]
        blocks.setdefault(key, set()).update([] if op["block"] is None else [op["block"]])
    for key, row in rows.items():
        row["block"] = name_blocks(list(blocks[key]))
    return sorted(rows.values(), key=lambda row: -row["seconds"])
