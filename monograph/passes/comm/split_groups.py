"""Counts travel on a road of their own."""

from torch.fx import Node

from monograph.annotate import Role
from monograph.axes import Axis, Group
from monograph.graph.facts import Facts
from monograph.graph.query import group_of, is_launch
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.passes.base import Pass

ROADS = {(Role.EXCHANGE_COUNTS, Group.EP.value): Group.EP_COUNTS.value}
"""(what travels, where) -> the group over the same ranks that it moves to."""


class SplitGroups(Pass):
    """Move the exchange of counts to a communicator of its own.

    Before:  n = exchange(counts, ep);  r = exchange(rows, ep)
    After:   n = exchange(counts, ep_counts);  r = exchange(rows, ep)
    Why:     transfers of one communicator wait for each other: a few counts would queue behind megabytes of rows that
             another chunk has in flight. (Parameters and gradients are captured on roads of their own already.)
    """

    def skip(self, facts: Facts) -> str:
        return "" if facts.degree(Axis.EP) > 1 else "the ep axis is 1"

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_roads(graph, facts)
        for launch, group in plan.items():
            launch.args = (*launch.args[:-1], group)
        return f"{len(plan)} transfers moved to {len(set(plan.values()))} groups"


def plan_roads(graph: StepGraph, facts: Facts) -> dict[Node, str]:
    """Launch -> its new group."""
    found = {}
    for node in graph.nodes:
        role = tag_of(node).role
        if is_launch(node) and role is not None and (role, group_of(node)) in ROADS:
            found[node] = ROADS[role, group_of(node)]
    return {node: group for node, group in found.items() if group in facts.group_sizes}
