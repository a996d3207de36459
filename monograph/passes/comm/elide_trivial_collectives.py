"""Remove collectives over groups of one rank."""

from torch.fx import Node

from monograph.compat.ops import ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER
from monograph.graph.edit import erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.layouts import find_layout
from monograph.graph.query import group_of, is_launch, value_of, wait_of
from monograph.graph.step_graph import StepGraph
from monograph.passes.base import Pass
from monograph.plurals import counted


class ElideTrivialCollectives(Pass):
    """A collective over a group of one rank is its own argument.

    Before:  a = all_reduce(x, sum, dp_replicate);  b = wait(a);  use(b)     (dp_replicate has one rank)
    After:   use(x)
    Why:     the same step is captured for every mesh; where an axis is 1 its collectives would only copy.
    """

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_elided(graph, facts)
        for launch in plan:
            source, wait = source_of(launch), wait_of(launch)
            redirect(wait, source)
            redirect(launch, source, users=[user for user in launch.users if user is not wait])  # sizes of its result
            erase([launch, wait])
        return f"{counted(len(plan), 'collective')} removed"


def plan_elided(graph: StepGraph, facts: Facts) -> list[Node]:
    """The launches whose group has one rank and whose result has the shape of their argument.

    An all_to_all whose result has a size read from data keeps that size's name, which its argument does not have.
    """
    known = (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)
    launches = [node for node in graph.nodes if is_launch(node) and facts.group_sizes.get(group_of(node)) == 1]
    launches = [node for node in launches if node.target in known or node.args[1] in ("sum", "max", "min", "avg")]
    return [node for node in launches if find_layout(value_of(node)) == find_layout(value_of(source_of(node)))]


def source_of(launch: Node) -> Node:
    """What a collective reads."""
    source = launch.args[0]
    assert isinstance(source, Node)
    return source
