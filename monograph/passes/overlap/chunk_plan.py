"""What has to be made once per chunk, and what happens at the boundaries: decided here, written by chunk_experts.

A node belongs to the body when its module is cut and something of a chunk reaches it: a value that is cut, a value
made by the body, or a constant that depends on the chunk's size. Everything else (a transposed weight, a mask for all)
is shared. What leaves the body is put together again, or added up where it is a parameter's gradient or a count.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from monograph.annotate import Direction, Role
from monograph.axes import Axis
from monograph.compat.ops import ATEN
from monograph.errors import ConfigError
from monograph.graph.chunk_nodes import ChunkNode, find_chunk_node, find_chunked_dims, is_inside, leaves_of
from monograph.graph.facts import Facts
from monograph.graph.query import is_backward, is_compute, is_launch, is_random, value_of
from monograph.graph.refuse import describe
from monograph.graph.signature import OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of

CHUNKABLE_ROLES = (
    Role.TOKEN_ALL_TO_ALL,
    Role.COUNT_ALL_TO_ALL,
    Role.SEQUENCE_ALL_GATHER,
    Role.SEQUENCE_REDUCE_SCATTER,
    Role.CONTEXT_ALL_GATHER,
    Role.CONTEXT_REDUCE_SCATTER,
    Role.CONTEXT_ALL_TO_ALL,
)
"""Collectives that a chunk may make for itself."""


@dataclass
class ChunkPlan:
    """Everything the cut consists of."""

    count: int
    body: dict[Node, str] = field(default_factory=dict)
    """Nodes made once per chunk, in order, with the module they belong to."""
    cuts: dict[Node, int] = field(default_factory=dict)
    """Values from outside that are cut -> the dim."""
    joins: dict[Node, int] = field(default_factory=dict)
    """Values of the body that others read whole -> the dim they are put together along."""
    sums: set[Node] = field(default_factory=set)
    """Gradients of parameters: added up, the last chunk first."""
    totals: set[Node] = field(default_factory=set)
    """Sums over tokens (loads, router statistics): added up, the first chunk first."""


def plan_chunks(graph: StepGraph, facts: Facts) -> ChunkPlan:
    """The body and its boundaries; what cannot be cut is refused with the node and its module."""
    chunking = facts.chunking
    assert chunking is not None, "the pass is skipped where nothing is chunked"
    plan = ChunkPlan(chunking.count)
    roots = sorted({chunk_node.root for node in graph.nodes if (chunk_node := find_chunk_node(node)) is not None})
    dim = chunking.dim
    for node in graph.nodes:
        root = find_root(node, plan, roots)
        if root and add_if_chunked(node, plan, dim):
            check_can_be_cut(node)
            plan.body[node] = root
    add_gradient_reductions(graph, plan, facts.reduce_dtype, is_reduced=chunking.is_summed_after_reduce)
    counted = find_counted(graph)
    for node in plan.body:
        plan_exit(node, plan, dim, counted)
    check_has_work(plan, roots, facts)
    return plan


def find_root(node: Node, plan: ChunkPlan, roots: list[str]) -> str:
    """The module a node is cut with; empty for none.

    A sum of gradients has no module; one that adds up what a root made is the root's. Nodes that passes added have
    no chunk node, but a path.
    """
    if not is_compute(node):
        return ""
    chunk_node = find_chunk_node(node)
    if chunk_node is not None:
        return chunk_node.root
    tag = tag_of(node)
    made = [plan.body.get(each, "") for each in node.all_input_nodes]
    if node.target is ATEN.add.Tensor and tag.direction is Direction.BACKWARD and made:
        return made[0] if len(set(made)) == 1 else ""
    if tag.role in (Role.PARAM_ALL_GATHER, Role.GRAD_REDUCE_SCATTER):
        return ""
    return next((root for root in roots if is_inside(tag.path, root)), "")


def add_if_chunked(node: Node, plan: ChunkPlan, dim: int) -> bool:
    """Whether anything of a chunk reaches this node; values it needs from outside are marked to be cut."""
    chunk_node = find_chunk_node(node)
    is_reached = any(each in plan.body or each in plan.cuts for each in node.all_input_nodes)
    if chunk_node is None:
        return is_reached
    if len(list(leaves_of(node))) != chunk_node.leaves:
        raise refuse(node, chunk_node, "a pass has changed its arguments since the step was captured")
    for index, operand in enumerate(leaves_of(node)):
        if isinstance(operand, Node) and operand not in plan.body and operand not in plan.cuts:
            dims = find_chunked_dims(value_of(operand), chunk_node.operands.get(index), plan.count)
            if dims not in ([], [dim]):
                raise refuse_boundary(node, operand, chunk_node.operands[index], dim)
            if dims:
                plan.cuts[operand] = dim
                is_reached = True
    return (
        is_reached
        or bool(chunk_node.constants)
        or bool(find_chunked_dims(value_of(node), chunk_node.values[0], plan.count))
    )


def find_chunk_value(node: Node, plan: ChunkPlan) -> Any:
    """What a node of the body yields for one chunk; one without a chunk node (sum, copy) has its argument's form."""
    chunk_node = find_chunk_node(node)
    if chunk_node is not None:
        return chunk_node.values[0]
    return find_chunk_value(next(each for each in node.all_input_nodes if each in plan.body), plan)


def add_gradient_reductions(graph: StepGraph, plan: ChunkPlan, reduce_dtype: torch.dtype, *, is_reduced: bool) -> None:
    """What happens to each chunk's gradient by itself: the cast to the reduce dtype and, if asked for, the collectives.

    Chunks are summed in the reduce dtype, as in eager mode. Where one rank holds a parameter there is no collective
    between the cast to it and the cast from it, and only the dtype tells them apart.
    """
    for node in list(plan.body):
        for tail in _find_tail(node, plan, reduce_dtype, is_reduced=is_reduced):
            plan.body[tail] = plan.body[node]
    indices = {node: index for index, node in enumerate(graph.nodes)}
    plan.body = dict(sorted(plan.body.items(), key=lambda item: indices[item[0]]))


def _find_tail(node: Node, plan: ChunkPlan, reduce_dtype: torch.dtype, *, is_reduced: bool) -> Iterator[Node]:
    last, outside = node, [user for user in node.users if user not in plan.body]
    while len(outside) == 1 and _is_scattered(outside[0]):
        (following,) = outside
        is_cast = following.target is ATEN._to_copy.default
        if (is_cast and value_of(last).dtype == reduce_dtype) or not (is_cast or is_reduced):
            return
        yield following
        last, outside = following, list(following.users)


def _is_scattered(node: Node) -> bool:
    return node.op == "call_function" and tag_of(node).role is Role.GRAD_REDUCE_SCATTER and bool(tag_of(node).slot)


def plan_exit(node: Node, plan: ChunkPlan, dim: int, counted: set[Node]) -> None:
    """How a value leaves the body, if it does."""
    readers = [user for user in node.users if user not in plan.body]
    if not readers:
        return
    chunk_node = find_chunk_node(node)
    value = value_of(node)
    is_gradient = bool(tag_of(node).gradient_of) or any(map(_is_scattered, [node, *readers]))
    if find_chunked_dims(value, find_chunk_value(node, plan), plan.count) == [dim]:
        plan.joins[node] = dim
    elif is_gradient:
        plan.sums.add(node)
    elif is_sum_over_tokens(node, counted):
        plan.totals.add(node)
    else:
        where = f"{tag_of(readers[0]).path or 'the step'} reads it"
        shape = list(value.shape) if isinstance(value, Tensor) else "a size"
        raise refuse(
            node, chunk_node, f"{where} whole, and {shape} is neither cut along dim {dim} nor a parameter's gradient"
        )


def is_sum_over_tokens(node: Node, counted: set[Node]) -> bool:
    """Whether the values of chunks add up to the value of the whole: statistics of the router, and counts."""
    value = value_of(node)
    if tag_of(node).role is Role.ROUTER_STATS and not is_backward(node):
        return True
    return node in counted and isinstance(value, Tensor) and not value.is_floating_point()


def find_counted(graph: StepGraph) -> set[Node]:
    """Nodes whose values reach the step's metrics, such as the experts' load."""
    pairs = zip(graph.outputs, graph.results, strict=True)
    found = {node for spec, node in pairs if spec.kind is OutputKind.METRIC and node is not None}
    todo = list(found)
    while todo:
        node = todo.pop()
        for each in node.all_input_nodes:
            if each not in found:
                found.add(each)
                todo.append(each)
    return found


def check_can_be_cut(node: Node) -> None:
    """Refuse nodes whose meaning would change with the order of chunks, or that talk to other ranks unexpectedly."""
    if is_random(node):
        raise refuse(node, find_chunk_node(node), "random numbers would be drawn in another order")
    if is_launch(node) and tag_of(node).role not in CHUNKABLE_ROLES:
        raise refuse(node, find_chunk_node(node), "this collective is not known to work for a part of the micro-batch")


def check_has_work(plan: ChunkPlan, roots: list[str], facts: Facts) -> None:
    """Refuse a cut that hides nothing although experts are spread over ranks."""
    if facts.degree(Axis.EP) == 1:
        return
    sending = {
        root for node, root in plan.body.items() if is_launch(node) and tag_of(node).role is Role.TOKEN_ALL_TO_ALL
    }
    idle = [root for root in roots if root not in sending]
    if idle:
        raise ConfigError(
            f"compile.expert_overlap cuts {', '.join(idle)}, which exchanges nothing",
            why="chunks cost time, and there is no exchange to hide",
            do="choose modules with experts: --compile.expert_overlap.modules 'layers.*.moe'",
        )


def refuse(node: Node, chunk_node: ChunkNode | None, why: str) -> ConfigError:
    """The error about one node."""
    where = chunk_node.root if chunk_node is not None else tag_of(node).path
    return ConfigError(
        f"{where} cannot be cut into chunks at {describe(node)}",
        why=why,
        do="--compile.expert_overlap.strategy trace, or choose other modules",
    )


def refuse_boundary(node: Node, operand: Node, part: Any, dim: int) -> ConfigError:
    """The error about a value that enters the body and cannot be cut."""
    whole, found = list(value_of(operand).shape), list(part.shape)
    return refuse(
        node,
        find_chunk_node(node),
        f"%{operand.name} is {whole} for the whole and {found} for a chunk: not a cut along dim {dim} alone",
    )
