"""What forward keeps for backward: every piece of memory that crosses, with who made it and why it is there."""

from typing import Any

from torch.fx import Node

from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.pieces import find_owners
from monograph.graph.query import is_backward, is_compute, name_of, value_of
from monograph.graph.sources import source_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import make_generic, tag_of


def find_saved(graph: StepGraph, sizes: LikelySizes) -> list[dict[str, Any]]:
    """One entry for each piece of forward's memory that backward reads, in the order they are made."""
    owners = find_owners(graph.module.graph)
    crossing: set[tuple[Node, int]] = set()
    for node in graph.nodes:
        if is_compute(node) and is_backward(node):
            read = [value for value in node.all_input_nodes if is_compute(value) and not is_backward(value)]
            crossing |= {piece for value in read for piece in owners[value]}
    kept = [(node, part) for node, part in crossing if is_compute(node)]
    indices = {node: index for index, node in enumerate(graph.nodes)}
    described = [describe_saved(node, part, sizes) for node, part in sorted(kept, key=lambda e: (indices[e[0]], e[1]))]
    return [each for each in described if each["bytes"]]


def describe_saved(node: Node, part: int, sizes: LikelySizes) -> dict[str, Any]:
    """A saved value as the report shows it."""
    value = value_of(node)
    value = value[part] if isinstance(value, list | tuple) else value
    tag = tag_of(node)
    return {
        "block": tag.block,
        "unit": tag.unit,
        "path": tag.path or tag.slot,
        "op": name_of(node),
        "role": tag.role.value if tag.role else "",
        "shape": list(sizes.shape(value)) if hasattr(value, "shape") else [],
        "dtype": str(getattr(value, "dtype", "")).removeprefix("torch."),
        "bytes": sizes.bytes(value),
        "source": source_of(node),
    }


def fold_saved(saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with equal entries of many blocks as one row, the largest in sum first."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for each in saved:
        path = make_generic(each["path"], each["unit"] if each["block"] is not None else "")
        key = (path, each["op"], each["role"], tuple(each["shape"]), each["dtype"], each["source"])
        row = rows.setdefault(key, each | {"path": path, "block": [], "count": 0, "total_bytes": 0})
        row["count"] += 1
        row["total_bytes"] += each["bytes"]
        if each["block"] is not None and each["block"] not in row["block"]:
            row["block"].append(each["block"])
    folded = [row | {"block": name_blocks(row["block"])} for row in rows.values()]
    return sorted(folded, key=lambda row: -row["total_bytes"])


def name_blocks(blocks: list[int]) -> str:
    """`0, 3..60`; empty for what lies outside of the blocks."""
    runs: list[list[int]] = []
    for block in sorted(blocks):
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def sum_by_block(saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bytes kept by each block, in order; what lies outside of the blocks comes last."""
    sums: dict[int | None, int] = {}
    for each in saved:
        sums[each["block"]] = sums.get(each["block"], 0) + each["bytes"]
    order = sorted(sums, key=lambda block: (block is None, block or 0))
    return [{"block": block, "bytes": sums[block]} for block in order]
