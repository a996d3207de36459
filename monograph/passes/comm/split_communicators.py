"""Separate communicators for token counts, and for tokens that are dispatched while chunks overlap."""

from torch.fx import Node

from monograph.annotate import Role
from monograph.axes import Axis, Group
from monograph.graph.facts import Facts
from monograph.graph.query import group_of, is_launch
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, tag_of
from monograph.passes.base import Pass
from monograph.plurals import counted

DISPATCH = "dispatch"
"""The region in which rows leave for their experts."""


class SplitCommunicators(Pass):
    """Move the exchange of counts to a communicator of its own; with chunks, that of dispatched rows too.

    Before:  n = exchange(counts, ep);  r = exchange(rows, ep)
    After:   n = exchange(counts, ep_counts);  r = exchange(rows, ep)
    Why:     collectives of one communicator wait for each other: a few counts would queue behind megabytes of rows that
             another chunk has in flight, and one chunk's dispatch behind another's combine. (Parameters and gradients
             are captured on communicators of their own already.)
    """

    def skip(self, facts: Facts) -> str:
        return "" if facts.degree(Axis.EP) > 1 else "the ep axis is 1"

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_communicators(graph, facts)
        for launch, group in plan.items():
            launch.args = (*launch.args[:-1], group)
        groups = len(set(plan.values()))
        own = "their own communicator" if groups == 1 else f"{groups} communicators of their own"
        return f"{counted(len(plan), 'collective')} moved to {own}"


def plan_communicators(graph: StepGraph, facts: Facts) -> dict[Node, str]:
    """Launch -> its new group."""
    launches = [node for node in graph.nodes if is_launch(node) and group_of(node) == Group.EP.value]
    found = {node: find_communicator(tag_of(node), has_chunks=facts.chunking is not None) for node in launches}
    return {node: group.value for node, group in found.items() if group is not None and group in facts.group_sizes}


def find_communicator(tag: Tag, *, has_chunks: bool) -> Group | None:
    """Where a collective among the experts' ranks moves; None when it stays."""
    if tag.role is Role.COUNT_ALL_TO_ALL:
        return Group.EP_COUNTS
    is_dispatch = tag.role is Role.TOKEN_ALL_TO_ALL and tag.region == DISPATCH
    return Group.EP_DISPATCH if is_dispatch and has_chunks else None
