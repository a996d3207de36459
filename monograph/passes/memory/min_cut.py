"""The fewest bytes that have to cross from forward to backward, found as a minimum cut.

Every forward node is an edge whose capacity is the size of its value in bytes. Ops that are never recomputed (matmuls,
attention, all_to_all) are sources, backward is the sink, and the cut edges are the values to save. Values that blocks
hand on are saved anyway, so each block is solved by itself, and identical blocks once.
"""

from collections.abc import Callable, Hashable

import networkx
from torch.fx import Node

from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import find_storages, is_backward, is_compute, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of

SOURCE, SINK = "source", "sink"


def plan_min_cut(graph: StepGraph, fixed: set[Node], is_source: Callable[[Node], bool]) -> set[Node]:
    """The forward nodes to keep besides those that are kept anyway; `is_source` says what is never recomputed."""
    blocks: dict[int, list[Node]] = {}
    for node in graph.nodes:
        block = tag_of(node).block
        if is_compute(node) and not is_backward(node) and block is not None:
            blocks.setdefault(block, []).append(node)
    sizes, roots = LikelySizes(graph.module.graph), find_storages(graph.module.graph)
    solved: dict[Hashable, tuple[int, ...]] = {}
    kept = set(fixed)
    for nodes in blocks.values():
        flow_nodes = build_flow_network(nodes, fixed, is_source, lambda node: sizes.bytes(value_of(roots[node])))
        if flow_nodes not in solved:
            solved[flow_nodes] = cut_flow_network(flow_nodes)
        kept |= {nodes[index] for index in solved[flow_nodes]}
    return kept


FlowNode = tuple[int | None, bool, bool, tuple[int, ...]]
"""One node: its capacity (None cannot be cut), whether it is a source, whether backward reads it, its readers."""


def build_flow_network(
    nodes: list[Node], fixed: set[Node], is_source: Callable[[Node], bool], width: Callable[[Node], int]
) -> tuple[FlowNode, ...]:
    """A block as a flow network, in a form that is equal for identical blocks."""
    indices = {node: index for index, node in enumerate(nodes)}
    flow_nodes: list[FlowNode] = []
    for node in nodes:
        readers = tuple(sorted(indices[user] for user in node.users if user in indices))
        is_read = any(is_compute(user) and is_backward(user) for user in node.users)
        if node in fixed:
            flow_nodes.append((0, False, False, ()))
        else:
            capacity = None if isinstance(value_of(node), list | tuple) else width(node)
            flow_nodes.append((capacity, is_source(node), is_read, readers))
    return tuple(flow_nodes)


def cut_flow_network(flow_nodes: tuple[FlowNode, ...]) -> tuple[int, ...]:
    """The indices of the nodes in a minimum cut."""
    flow = networkx.DiGraph()
    flow.add_nodes_from((SOURCE, SINK))
    for index, (width, is_source, is_read, readers) in enumerate(flow_nodes):
        begin, end = (index, "in"), (index, "out")
        flow.add_edge(begin, end, **({} if width is None else {"capacity": width}))
        if is_source:
            flow.add_edge(SOURCE, begin)
        if is_read:
            flow.add_edge(end, SINK)
        for reader in readers:
            flow.add_edge(end, (reader, "in"))
    _, (reachable, _) = networkx.minimum_cut(flow, SOURCE, SINK)
    indices = range(len(flow_nodes))
    return tuple(index for index in indices if (index, "in") in reachable and (index, "out") not in reachable)
