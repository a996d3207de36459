"""The first node that computes something else in one graph than in another."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.fx import Node

from monograph.bisect.differences import ValueDifference, find_difference
from monograph.graph.query import is_compute, name_of, value_of
from monograph.graph.sources import source_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import find_tag

_SHOWN_NODES = 12


@dataclass(frozen=True)
class NodeDifference:
    """A node whose value is another one, and the text of its surroundings in both graphs."""

    place: int
    """Its index in the schedule."""
    node: str
    path: str
    direction: str
    source: str
    made_by: str
    value: ValueDifference
    before: tuple[str, ...]
    after: tuple[str, ...]


def find_node(
    before: StepGraph,
    after: StepGraph,
    values: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    *,
    tolerance: float = 0.0,
) -> NodeDifference | None:
    """The first node of `after` that yields another value than its namesake in `before`.

    `values` are those of both graphs by node name. Nodes that only `after` has cannot be compared; those that feed the
    first different node are shown with it.
    """
    old = {node.name: node for node in before.nodes}
    for place, node in enumerate(after.nodes):
        if node.name in values[0] and node.name in values[1]:
            found = find_difference(values[0][node.name], values[1][node.name], tolerance)
            if found is not None:
                return describe(place, node, old[node.name], found, old)
    return None


def find_node_by_tags(
    left: StepGraph,
    right: StepGraph,
    values: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    *,
    tolerance: float = 0.0,
) -> NodeDifference | None:
    """The same for two captures: nodes belong together by module, direction, op and how often it ran there before."""
    others = dict(zip(_find_keys(left), left.nodes, strict=True))
    for place, (key, node) in enumerate(zip(_find_keys(right), right.nodes, strict=True)):
        other = others.get(key)
        if other is None or other.name not in values[0] or node.name not in values[1]:
            continue
        mine, theirs = values[0][other.name], values[1][node.name]
        if mine.shape == theirs.shape and (found := find_difference(mine, theirs, tolerance)) is not None:
            return describe(place, node, other, found, {})
    return None


def _find_keys(graph: StepGraph) -> list[tuple[str, str, str, int]]:
    counts: dict[tuple[str, str, str], int] = {}
    keys = []
    for node in graph.nodes:
        tag = find_tag(node)
        key = (tag.path if tag else "", tag.direction.value if tag else node.op, name_of(node) or node.name)
        counts[key] = counts.get(key, 0) + 1
        keys.append((*key, counts[key]))
    return keys


def describe(place: int, node: Node, other: Node, value: ValueDifference, old: Mapping[str, Node]) -> NodeDifference:
    """The node with what feeds it, in both graphs."""
    tag = find_tag(node)
    fed = find_new(node, old) if old else list(node.all_input_nodes)
    made = [tag.made_by for each in fed if (tag := find_tag(each)) and each.name not in old] if old else []
    sources = [source for each in (node, *fed) if (source := source_of(each))]
    return NodeDifference(
        place=place,
        node=node.name,
        path=tag.path if tag else "",
        direction=tag.direction.value if tag else "",
        source=sources[0] if sources else "",
        made_by=made[-1] if made else (tag.made_by if tag else ""),
        value=value,
        before=tuple(render_line(each) for each in (*_inputs(other), other)),
        after=tuple(render_line(each) for each in (*(fed or _inputs(node)), node)),
    )


def find_new(node: Node, old: Mapping[str, Node]) -> list[Node]:
    """The nodes that feed this one and are not in the old graph, in order; where there are none, its inputs."""
    found: set[Node] = set()
    todo = [each for each in node.all_input_nodes if each.name not in old]
    while todo and len(found) < _SHOWN_NODES:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += [value for value in each.all_input_nodes if value.name not in old]
    return sorted(found)


def _inputs(node: Node) -> list[Node]:
    return [each for each in dict.fromkeys(node.all_input_nodes) if is_compute(each)][:_SHOWN_NODES]


def render_line(node: Node) -> str:
    """One node as a line: name, shape, op and arguments."""
    value = value_of(node)
    shape = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} " if isinstance(value, Tensor) else ""
    given = [*map(_show, node.args), *(f"{key}={_show(value)}" for key, value in node.kwargs.items())]
    return f"{node.name} = {shape}{name_of(node) or node.target}({', '.join(given)})"


def _show(argument: object) -> str:
    text = f"[{', '.join(map(_show, argument))}]" if isinstance(argument, list | tuple) else str(argument)
    return text if len(text) <= 80 else f"{text[:77]}..."
