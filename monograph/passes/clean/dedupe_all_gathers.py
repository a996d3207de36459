"""One gather per parameter."""

from torch.fx import Node

from monograph.annotate import Direction, Role
from monograph.compat.ops import ALL_GATHER
from monograph.graph.edit import erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.query import is_wait, wait_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.passes.base import Pass, Property
from monograph.plurals import counted


class DedupeAllGathers(Pass):
    """A parameter that is read twice is gathered once.

    Before:  a = gather(cast(p));  b = gather(cast(p));  use(a);  use(b)
    After:   a = gather(cast(p));  use(a);  use(a)
    Why:     tied weights and repeated uses of a module ask for the same collective; the second one brings nothing new.
    """

    provides = (Property.SHARED_GATHERS,)

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_shared(graph)
        for later, first in plan.items():
            redirect(later, first)
        erase(plan)
        return f"{counted(sum(is_wait(node) for node in plan), 'duplicate all_gather')} removed"


def plan_shared(graph: StepGraph) -> dict[Node, Node]:
    """Node of a later gather -> the equal node of the first: from the parameter to the end of the wait.

    Nodes are equal when they do the same to equal values, as in any value numbering; only nodes that lead to a
    parameter gather of the same direction are considered, so that backward still gathers for itself.
    """
    wanted = find_chains(graph)
    seen: dict[tuple[object, ...], Node] = {}
    plan: dict[Node, Node] = {}
    for node in graph.nodes:
        if node not in wanted:
            continue
        key = _key(node, plan)
        if key in seen:
            plan[node] = seen[key]
        else:
            seen[key] = node
    return plan


def find_chains(graph: StepGraph) -> set[Node]:
    """The nodes that bring parameters together: everything between an input and the wait of its gather."""
    found: set[Node] = set()
    for launch in graph.nodes:
        if launch.target is not ALL_GATHER or tag_of(launch).role is not Role.PARAM_ALL_GATHER:
            continue
        found |= {launch, wait_of(launch)}
        todo = list(launch.all_input_nodes)
        while todo:
            node = todo.pop()
            if node.op != "placeholder" and node not in found:
                found.add(node)
                todo += node.all_input_nodes
    return found


def _key(node: Node, plan: dict[Node, Node]) -> tuple[object, ...]:
    arguments = tuple(plan.get(arg, arg) if isinstance(arg, Node) else str(arg) for arg in node.args)
    options = tuple((name, str(value)) for name, value in node.kwargs.items())
    direction: Direction = tag_of(node).direction
    return node.target, arguments, options, direction
