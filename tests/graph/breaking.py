"""What every way to break a graph needs: finding a place, and turning things around there."""

from monograph.graph.edit import redirect
from monograph.graph.query import group_of, is_launch, value_of, wait_of
from monograph.graph.signature import OutputKind
from monograph.graph.tags import tag_of


class Mutations(list):
    """Mistakes a pass could make; used as a decorator, it adds another one.

    A mutation changes the graph in place, at a place picked with the given random generator; it returns False where
    the graph has no such place.
    """

    def __call__(self, function):
        self.append(function)
        return function


def pick(rng, nodes):
    nodes = list(nodes)
    return rng.choice(nodes) if nodes else None


def calls(graph, *targets):
    return [node for node in graph.nodes if node.target in targets]


def launches(graph, role=None):
    return [node for node in graph.nodes if is_launch(node) and (role is None or tag_of(node).role is role)]


def large(graph, facts, role=None):
    return [node for node in launches(graph, role) if facts.group_sizes[group_of(node)] > 1]


def set_args(node, index, value):
    node.args = (*node.args[:index], value, *node.args[index + 1 :])


def bypass(launch):
    """Readers of a collective read what it was given."""
    redirect(wait_of(launch), launch.args[0])


def gradient_places(graph):
    return [index for index, spec in enumerate(graph.outputs) if spec.kind is OutputKind.GRADIENT]


def set_results(graph, results):
    graph.module.graph.output_node().args = (list(results),)


def layout(node):
    value = value_of(node)
    return value.shape, value.stride(), value.dtype


def pairs_alike(rng, nodes):
    """Two different nodes of the same shape, or None."""
    nodes = list(nodes)
    rng.shuffle(nodes)
    for index, one in enumerate(nodes):
        for other in nodes[index + 1 :]:
            if layout(one) == layout(other):
                return one, other
    return None
