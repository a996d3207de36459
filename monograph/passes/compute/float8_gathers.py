"""Rows that experts read, cast before they are gathered: every token once, not for every expert that it goes to."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.fx import Graph, Node

from monograph.compat.ops import ATEN
from monograph.graph.edit import call_before
from monograph.graph.query import is_backward, value_of
from monograph.graph.tags import tag_of
from monograph.kernels.float8 import FLOAT8_CAST
from monograph.kernels.float8_grouped import FLOAT8_GATHER_ROWS
from monograph.passes.compute.float8_columns import key_of_value, redirect_parts

_BY_ROWS = (torch.float8_e4m3fn, True, False)


@dataclass(frozen=True)
class GatheredCast:
    """Rows that are gathered, the cast that alone reads them, and other casts of what they are gathered from."""

    gather: Node
    cast: Node
    others: Sequence[Node]


def plan_gathers(graph: Graph) -> list[GatheredCast]:
    """Gathers of at least as many rows as there are, which nothing but a cast by rows reads."""
    casts = [node for node in graph.nodes if node.target is FLOAT8_CAST and tuple(node.args[1:]) == _BY_ROWS]
    found = []
    for cast in casts:
        gather = cast.args[0]
        if not isinstance(gather, Node) or not is_gather(gather) or len(gather.users) > 1:
            continue
        key = key_of_value(gather.args[0])
        others = [
            each
            for each in casts
            if key_of_value(each.args[0]) == key and each > gather and is_backward(each) == is_backward(gather)
        ]
        found.append(GatheredCast(gather, cast, others))
    return found


def is_gather(node: Node) -> bool:
    """Whether a node takes rows of a matrix, and not fewer than it has."""
    if node.target is not ATEN.index.Tensor or len(node.args[1]) != 1 or not isinstance(node.args[1][0], Node):  # type: ignore[arg-type, index]
        return False
    matrix, result = value_of(node.args[0]), value_of(node)  # type: ignore[arg-type]
    rows = matrix.shape[0], result.shape[0]
    return matrix.dim() == result.dim() == 2 and all(isinstance(each, int) for each in rows) and rows[0] <= rows[1]


def apply_gathers(graph: Graph, plan: Sequence[GatheredCast], made_by: str) -> None:
    """Cast first, then gather numbers and scales; other casts of the same rows are this one."""
    for each in plan:
        gather, tag = each.gather, replace(tag_of(each.cast), made_by=made_by)
        source, indices = gather.args[:2]
        cast = call_before(graph, gather, FLOAT8_CAST, (source, *_BY_ROWS), tag)
        parts = [call_before(graph, gather, operator.getitem, (cast, index), tag) for index in (0, 1)]
        moved = replace(tag_of(gather), made_by=made_by)
        rows = call_before(graph, gather, FLOAT8_GATHER_ROWS, (*parts, indices[0]), moved)  # type: ignore[index]
        redirect_parts(graph, each.cast, rows, made_by)
        for other in each.others:
            redirect_parts(graph, other, cast, made_by)
