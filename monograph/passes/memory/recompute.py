"""Recompute in backward what forward did not save."""

from dataclasses import dataclass

from torch.fx import Node

from monograph.annotate import Direction
from monograph.graph.edit import copy_before, erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.query import is_backward, is_compute
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.passes.base import Pass, Property
from monograph.passes.clean.remove_dead_code import plan_dead
from monograph.passes.memory.saved import find_crossing
from monograph.plurals import counted


@dataclass(frozen=True)
class Recomputation:
    """One forward node that backward computes once more."""

    node: Node
    before: Node
    """The backward node that needs it first."""


class Recompute(Pass):
    """Copy the forward nodes that are not saved into backward, each just before it is first needed there.

    Before:  b = silu(a)                        backward: g2 = mm(b, g)
    After:   b = silu(a)                        backward: b2 = silu(a);  g2 = mm(b2, g)
    Why:     `b` dies in forward and lives again for the moment backward needs it. The copies do the same arithmetic on
             the same values, so every bit stays. Counters, sizes and random numbers are never computed twice.
    """

    requires = (Property.SAVED_PLAN,)
    provides = (Property.RECOMPUTE,)

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_recompute(graph)
        apply_recompute(plan)
        dead = plan_dead(graph)
        erase(dead)
        return f"{counted(len(plan), 'node')} recomputed in backward, {len(dead)} dropped from forward"


def plan_recompute(graph: StepGraph) -> list[Recomputation]:
    """Every node to recompute with its first reader; arguments come before those who read them."""
    crossing = find_crossing(graph, {node for node in graph.nodes if tag_of(node).keep is not False})
    again = set(crossing.recomputed)
    indices = {node: index for index, node in enumerate(graph.nodes)}
    first: dict[Node, Node] = {}
    for node in graph.nodes:
        if is_compute(node) and is_backward(node):
            for value in node.all_input_nodes:
                if value in again:
                    first.setdefault(value, node)
    for node in reversed(crossing.recomputed):  # readers come later in the graph, so they are settled already
        readers = [first[user] for user in node.users if user in again]
        readers += [first[node]] if node in first else []
        first[node] = min(readers, key=indices.__getitem__)
    return [Recomputation(node, first[node]) for node in crossing.recomputed]


def apply_recompute(plan: list[Recomputation]) -> None:
    """Make the copies and let backward read them."""
    copies: dict[Node, Node] = {}
    for item in plan:
        copies[item.node] = copy_before(
            item.before,
            item.node,
            lambda value: copies.get(value, value),
            made_by=Recompute.name(),
            direction=Direction.BACKWARD,
            keep=None,
        )
    made = set(copies.values())
    for node, copy in copies.items():
        readers = [user for user in node.users if is_compute(user) and is_backward(user) and user not in made]
        redirect(node, copy, users=readers)
