"""Dead code elimination."""

from torch.fx import Node

from monograph.graph.edit import erase
from monograph.graph.facts import Facts
from monograph.graph.query import is_compute, is_mutation, is_random
from monograph.graph.step_graph import StepGraph
from monograph.passes.base import Pass
from monograph.plurals import counted


class RemoveDeadCode(Pass):
    """Drop every node whose value reaches no output.

    Before:  a = mul(x, 2);  b = add(x, 1);  return b
    After:   b = add(x, 1);  return b
    Why:     capture keeps every op that ran, also those whose results were never used; they cost time and memory.
    """

    def run(self, graph: StepGraph, facts: Facts) -> str:
        dead = plan_dead(graph)
        erase(dead)
        return f"{counted(len(dead), 'node')} removed"


def plan_dead(graph: StepGraph) -> list[Node]:
    """Nodes that no output depends on, in order. Collectives and their waits go together, and on all ranks alike."""
    alive: set[Node] = set()
    for node in reversed(graph.nodes):
        has_effect = is_mutation(node) or is_random(node)
        if not is_compute(node) or has_effect or any(user in alive for user in node.users):
            alive.add(node)
    return [node for node in graph.nodes if node not in alive]
