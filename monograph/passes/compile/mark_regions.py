"""Say which parts of the step are compiled."""

import operator
from collections import Counter
from dataclasses import replace

from torch.fx import Node

from monograph.errors import ConfigError
from monograph.graph.facts import Facts
from monograph.graph.query import alias_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import set_tag, tag_of
from monograph.passes.base import Pass, Property
from monograph.passes.compile.mark_regions_options import MarkRegionsConfig
from monograph.passes.compile.regions import can_compile, group_consecutive
from monograph.plurals import counted

BLOCKS = "blocks"
OUTSIDE = "outside"
WORTH_COMPILING = 2
"""Fewer ops than this, not counting views, gain nothing."""


class MarkRegions(Pass):
    """Mark the nodes of chosen regions, block by block, as parts to be compiled.

    Before:  a = silu(x);  b = mul(a, y);  r = exchange(b)
    After:   a = silu(x)  # compile layers.3;  b = mul(a, y)  # compile layers.3;  r = exchange(b)
    Why:     marking is apart from compiling, so that one can see what would be compiled. A part ends where a collective
             starts or is waited for: those stay in sight of the scheduler.
    """

    Config = MarkRegionsConfig
    provides = (Property.REGIONS,)

    def run(self, graph: StepGraph, facts: Facts) -> str:
        bring_results_home(graph)
        plan = plan_marks(graph, self.config.regions)
        for mark, nodes in plan.items():
            for node in nodes:
                set_tag(node, replace(tag_of(node), compile=mark))
        size = sum(map(len, plan.values()))
        return f"{counted(len(plan), 'region')} with {counted(size, 'node')} marked for compilation"


def bring_results_home(graph: StepGraph) -> None:
    """Put the results of an op with several right after it: a part that ends in between would have to hand on all of
    them as one value, which compiled code cannot."""
    for node in graph.nodes:
        results = [user for user in node.users if user.target is operator.getitem]
        for last, result in zip((node, *results), results, strict=False):
            if result is not last.next:
                last.append(result)


def plan_marks(graph: StepGraph, regions: tuple[str, ...]) -> dict[str, list[Node]]:
    """Mark -> nodes, for every part of every region."""
    known = sorted({tag_of(node).region for node in graph.nodes} - {""})
    for region in regions:
        if region not in (BLOCKS, OUTSIDE, *known):
            raise ConfigError(
                f"passes.mark_regions.regions has {region!r}",
                why="no part of the step has that name",
                do=f"choose from {', '.join([BLOCKS, OUTSIDE, *known])}",
            )

    def find_part(node: Node) -> tuple[str, ...] | None:
        tag = tag_of(node)
        if not can_compile(node):
            return None
        is_outside = tag.block is None
        # Slices of the loss are parts of their own: a compiler that sees all of them makes all logits at once.
        where = tag.direction.value, (tag.region or OUTSIDE) if is_outside else tag.unit
        if (OUTSIDE if is_outside else BLOCKS) in regions:
            return where
        return (tag.region, *where) if tag.region in regions else None

    marks: dict[str, list[Node]] = {}
    numbers: Counter[tuple[str, ...]] = Counter()
    for run in group_consecutive(graph.nodes, find_part):
        part = find_part(run[0])
        if part is not None and sum(alias_of(node) is None for node in run) >= WORTH_COMPILING:
            numbers[part] += 1
            marks[f"{' '.join(part[:-1])} part {numbers[part]} of {part[-1]}"] = run
    return marks
