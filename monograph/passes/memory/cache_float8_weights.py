"""Weights stay in float8 from the first micro-batch of an update to the last."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from monograph.axes import Axis
from monograph.compat.ops import ATEN
from monograph.graph.cast_weights import find_float8_castings, find_layouts
from monograph.graph.edit import call_before, erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.query import is_backward
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import set_tag, tag_of
from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_CAST_BOTH
from monograph.passes.base import Pass
from monograph.passes.clean.remove_dead_code import plan_dead
from monograph.passes.compute.float8_columns import key_of_value
from monograph.plurals import counted


class CacheFloat8Weights(Pass):
    """Cast each weight to float8 once an update, in all layouts that matmuls read, in its first micro-batch.

    Before:  w = _to_copy(%w2, dtype=bfloat16);  w1 = float8_cast(w);  ...  w2 = float8_cast(t(w))
    After:   w1, w2 = float8_cast_both(%w2)  # once
    Why:     weights change only with an update. Its first micro-batch casts them, inside of its own CUDA graph, and the
             programs of the others read what it left. The memory is that of the bfloat16 copies, which nothing
             reads any more. With one micro-batch an update nothing would be read again.
    """

    def skip(self, facts: Facts) -> str:
        if facts.degree(Axis.PP) > 1:
            return "stages of a pipeline have several micro-batches in flight: each casts for itself"
        if self.is_asked:
            return ""
        if facts.micro_batches == 1:
            return "an update has one micro-batch: no other would read the casts"
        return "parallelism.reshard_after_forward is true: cached casts would cost memory" if facts.reshard else ""

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_weights(graph)
        for each in plan:
            apply_weight(graph.module.graph, each)
        erase(plan_dead(graph))
        both = len([each for each in plan if len(each.layouts) > 1])
        return f"{counted(len(plan), 'weight')} cast to float8 once per update, {both} of them in both layouts"


@dataclass(frozen=True)
class CastWeight:
    """A weight, and all of its casts to one dtype with scales of one kind."""

    casts: Sequence[Node]
    source: Node
    """What is cast: the parameter itself where only these casts read its bfloat16 copy."""

    @property
    def layouts(self) -> set[bool]:
        """Whether it is read transposed: no, yes, or both."""
        return {flag for cast in self.casts for flag in find_layouts(cast)}


def plan_weights(graph: StepGraph) -> list[CastWeight]:
    """Every weight that is cast to float8, in the order of the first casts."""
    casts: dict[Any, list[Node]] = {}
    for node in find_float8_castings(graph):
        if node.target is not operator.getitem:
            casts.setdefault((key_of_value(node.args[0]), *node.args[1:3]), []).append(node)
    known = {node for group in casts.values() for node in group}
    return [CastWeight(group, find_source(group[0].args[0], known)) for group in casts.values()]


def find_source(value: Any, casts: set[Node]) -> Any:
    """The value that a cast reads, or the fp32 parameter that only casts read rounded to bfloat16."""
    is_copy = value.target is ATEN._to_copy.default and value.kwargs == {"dtype": torch.bfloat16}
    if is_copy and value.args[0].op == "placeholder" and casts.issuperset(value.users):
        return value.args[0]
    return value


def apply_weight(graph: Graph, weight: CastWeight) -> None:
    """One cast where the first was, whose results all matmuls read."""
    first = weight.casts[0]
    tag = replace(tag_of(first), made_by=CacheFloat8Weights.name(), once=True)
    if len(weight.casts) == 1 and weight.source is first.args[0]:
        for node in (first, *first.users):
            set_tag(node, replace(tag_of(node), once=True))
        return
    layouts = sorted(weight.layouts)
    target, flags = (FLOAT8_CAST_BOTH, ()) if len(layouts) == 2 else (FLOAT8_CAST, tuple(layouts))
    whole = call_before(graph, first, target, (weight.source, *first.args[1:3], *flags), tag)
    parts: dict[int, Node] = {}
    for cast in weight.casts:
        for part in list(cast.users):
            which, number = divmod(int(part.args[1]), 2)  # type: ignore[arg-type]
            index = 2 * layouts.index(find_layouts(cast)[which]) + number
            if index not in parts:
                parts[index] = call_before(graph, first, operator.getitem, (whole, index), tag)
            if not is_backward(first) and any(is_backward(user) for user in part.users):
                set_tag(parts[index], replace(tag, keep=True))
            redirect(part, parts[index])
