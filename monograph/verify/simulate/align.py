"""Nodes of two captures of the same step, on two meshes, that compute the same: by module, direction and order."""

from collections import defaultdict
from collections.abc import Hashable
from difflib import SequenceMatcher

from torch.fx import Node

from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import find_tag


def align_nodes(graph: StepGraph, other: StepGraph) -> dict[Node, Node]:
    """A node of `graph` -> the node of `other` in its place; nodes without one are left out."""
    theirs = _by_module(other)
    found: dict[Node, Node] = {}
    for key, nodes in _by_module(graph).items():
        partners = theirs.get(key, [])
        ours, others = ([_describe(node) for node in group] for group in (nodes, partners))
        for block in SequenceMatcher(a=ours, b=others, autojunk=False).get_matching_blocks():
            for offset in range(block.size):
                found[nodes[block.a + offset]] = partners[block.b + offset]
    specs = {(spec.kind, spec.name): node for spec, node in zip(other.inputs, other.placeholders, strict=True)}
    for spec, node in zip(graph.inputs, graph.placeholders, strict=True):
        if (spec.kind, spec.name) in specs:
            found[node] = specs[spec.kind, spec.name]
    return found


def _by_module(graph: StepGraph) -> dict[Hashable, list[Node]]:
    """The calls of a graph in order, by the module and the half of the step that they belong to."""
    found: dict[Hashable, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.op == "call_function":
            tag = find_tag(node)
            found[None if tag is None else (tag.path, tag.direction)].append(node)
    return found


def _describe(node: Node) -> str:
    tag = find_tag(node)
    return f"{node.target} " + ("" if tag is None else f"{tag.role} {tag.region} {tag.slot}")
