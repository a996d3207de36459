"""The fewest bytes that have to cross from forward to backward, found as a minimum cut.

Think of every value as a pipe whose width is its size. Matmuls, attention and exchanges are springs, backward is the
sea; what has to be kept is where all pipes between them are closed at the least width. Values that blocks hand on are
kept anyway, so each block is a problem of its own, and equal blocks are solved once.
"""

from collections.abc import Callable, Hashable

import networkx
from torch.fx import Node

from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import find_storages, is_backward, is_compute, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of

SPRING, SEA = "spring", "sea"


def plan_min_cut(graph: StepGraph, fixed: set[Node], is_spring: Callable[[Node], bool]) -> set[Node]:
    """The forward nodes to keep besides those that are kept anyway; `is_spring` says what is never recomputed."""
    blocks: dict[int, list[Node]] = {}
    for node in graph.nodes:
        block = tag_of(node).block
        if is_compute(node) and not is_backward(node) and block is not None:
            blocks.setdefault(block, []).append(node)
    sizes, roots = LikelySizes(graph.module.graph), find_storages(graph.module.graph)
    solved: dict[Hashable, tuple[int, ...]] = {}
    kept = set(fixed)
    for nodes in blocks.values():
        pipes = build_flow_network(nodes, fixed, is_spring, lambda node: sizes.bytes(value_of(roots[node])))
        if pipes not in solved:
            solved[pipes] = cut_flow_network(pipes)
        kept |= {nodes[index] for index in solved[pipes]}
    return kept


Pipe = tuple[int | None, bool, bool, tuple[int, ...]]
"""One node: its width (None cannot be closed), whether it is a spring, whether backward reads it, who reads it."""


def build_flow_network(
    nodes: list[Node], fixed: set[Node], is_spring: Callable[[Node], bool], width: Callable[[Node], int]
) -> tuple[Pipe, ...]:
    """A block as pipes, in a form that is equal for equal blocks."""
    indices = {node: index for index, node in enumerate(nodes)}
    pipes: list[Pipe] = []
    for node in nodes:
        readers = tuple(sorted(indices[user] for user in node.users if user in indices))
        is_read = any(is_compute(user) and is_backward(user) for user in node.users)
        if node in fixed:
            pipes.append((0, False, False, ()))
        else:
            closes = None if isinstance(value_of(node), list | tuple) else width(node)
            pipes.append((closes, is_spring(node), is_read, readers))
    return tuple(pipes)


def cut_flow_network(pipes: tuple[Pipe, ...]) -> tuple[int, ...]:
    """Which pipes are closed in the cheapest cut between the springs and the sea."""
    flow = networkx.DiGraph()
    flow.add_nodes_from((SPRING, SEA))
    for index, (width, is_spring, is_read, readers) in enumerate(pipes):
        begin, end = (index, "in"), (index, "out")
        flow.add_edge(begin, end, **({} if width is None else {"capacity": width}))
        if is_spring:
            flow.add_edge(SPRING, begin)
        if is_read:
            flow.add_edge(end, SEA)
        for reader in readers:
            flow.add_edge(end, (reader, "in"))
    _, (wet, _) = networkx.minimum_cut(flow, SPRING, SEA)
    return tuple(index for index in range(len(pipes)) if (index, "in") in wet and (index, "out") not in wet)
