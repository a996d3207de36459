"""What holds for every pass, whatever it does, on a graph at hand: tests try ours, `monograph check-pass` a user's."""

from dataclasses import dataclass

from torch.fx import Graph, GraphModule, Node

from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.graph.verify import check_graph
from monograph.passes.base import Pass


@dataclass(frozen=True)
class RepeatedRun:
    """The text of a graph after a pass ran once, and after it ran a second time."""

    once: str
    twice: str


def run_again(each: Pass, graph: StepGraph, facts: Facts) -> RepeatedRun:
    """Check all rules on a graph on which a pass just ran, run it once more, and check them again."""
    check_graph(graph, facts)
    once = graph.text(folded=False)
    each.run(graph, facts)
    check_graph(graph, facts)
    return RepeatedRun(once, graph.text(folded=False))


def clone_graph(graph: StepGraph) -> StepGraph:
    """A graph that can be changed without changing the original; values are shared, because nobody writes them."""
    inside = Graph()
    copies: dict[Node, Node] = {}
    for node in graph.nodes:
        copies[node] = inside.node_copy(node, copies.__getitem__)
        copies[node].meta = dict(node.meta)
    module = GraphModule(graph.module, inside)
    return StepGraph(module=module, inputs=graph.inputs, outputs=graph.outputs, properties=graph.properties)
