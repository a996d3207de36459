"""Cut modules with experts into chunks."""

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from monograph.annotate import Direction
from monograph.compat.ops import ATEN
from monograph.errors import ConfigError
from monograph.graph.chunk_nodes import find_chunk_node, forget_chunk_nodes, is_inside, map_leaves
from monograph.graph.edit import call_after, call_before, copy_value, erase, infer_value, redirect
from monograph.graph.facts import Facts
from monograph.graph.invariants import with_chunks
from monograph.graph.query import is_backward, is_compute, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, set_tag, tag_of
from monograph.log import get_log
from monograph.passes.base import Pass, Property
from monograph.passes.overlap.chunk_plan import ChunkPlan, plan_chunks
from monograph.plurals import counted

log = get_log("overlap")


class ChunkExperts(Pass):
    """Split chosen modules into chunks of the micro-batch.

    Before:  r = exchange(x);  y = experts(r);  z = exchange(y)                  backward: g = mm(d, r)
    After:   x0, x1 = split(x);  r0 = exchange(x0);  r1 = exchange(x1);  y0 = ...;  z = cat(z0, z1)
             backward: g0 = mm(d0, r0);  g1 = mm(d1, r1);  g = g1 + g0
    Why:     one chunk's all_to_all overlaps with another's compute. Constants and shapes of a chunk come from a
             capture of the step at a chunk's size. Adjacent modules hand chunks on without putting them together.
             The numbers are those of calling the modules chunk by chunk.
    """

    provides = (Property.CHUNKS,)
    bitwise = False

    def skip(self, facts: Facts) -> str:
        if facts.chunking is None:
            return "no modules are chunked"
        return "the step was captured in chunks" if facts.chunking.is_captured else ""

    def run(self, graph: StepGraph, facts: Facts) -> str:
        if not any(is_backward(node) for node in graph.nodes):
            return "evaluation is not chunked"
        if not any(find_chunk_node(node) for node in graph.nodes):
            if any(tag_of(node).chunk is not None for node in graph.nodes):
                return "chunked already"
            raise ConfigError(
                "compile.expert_overlap.strategy is graph, and the step was not captured for one chunk",
                why="constants and shapes of a chunk come from that capture",
            )
        plan = plan_chunks(graph, facts)
        log_plan(plan)
        apply_chunks(graph, plan)
        forget_chunk_nodes(graph)
        roots = set(plan.body.values())
        if graph.properties is not None:
            graph.properties = with_chunks(
                graph.properties, lambda path: any(is_inside(path, root) for root in roots), plan.count
            )
        return (
            f"{counted(len(roots), 'module')} ({counted(len(plan.body), 'node')}) split into "
            f"{counted(plan.count, 'chunk')}: "
            f"{counted(len(plan.cuts), 'split')}, {counted(len(plan.joins), 'concat')}, "
            f"{counted(len(plan.sums), 'gradient sum')}"
        )


def log_plan(plan: ChunkPlan) -> None:
    """Log every decision, for debugging."""
    for root in sorted(set(plan.body.values())):
        inside = [node for node, owner in plan.body.items() if owner == root]
        log.debug("%s: %d nodes are made %d times", root, len(inside), plan.count)
    for what, nodes in (
        ("cut", plan.cuts),
        ("put together", plan.joins),
        ("added", plan.sums),
        ("counted", plan.totals),
    ):
        for node in nodes:
            log.debug("%s: %s in %s", what, node.name, tag_of(node).path or "the step")


Pieces = dict[Node, list[Node]]


def apply_chunks(graph: StepGraph, plan: ChunkPlan) -> None:
    """Make the copies next to their originals, close the boundaries, drop the originals."""
    pieces: Pieces = {}
    for node, root in plan.body.items():
        for each in node.all_input_nodes:
            if each in plan.cuts and each not in pieces:
                made_in = tag_of(each if is_compute(each) else node).direction  # an input is cut by its first reader
                pieces[each] = cut_value(graph, each, plan, make_tag(root, node, made_in))
        pieces[node] = [copy_for_chunk(graph, node, pieces, chunk) for chunk in range(plan.count)]
        if node in plan.joins:
            close(graph, plan, node, pieces[node])
        elif node in plan.sums:
            close_sum(graph, plan, node, pieces[node][::-1])
        elif node in plan.totals:
            close_sum(graph, plan, node, pieces[node])
    erase(plan.body)


def make_tag(root: str, node: Node, direction: Direction) -> Tag:
    """The tag of what cuts or joins values of a module that is chunked, next to one of its nodes."""
    inside = tag_of(node)
    return Tag(path=root, unit=inside.unit, block=inside.block, direction=direction, made_by=ChunkExperts.name())


def cut_value(graph: StepGraph, value: Node, plan: ChunkPlan, tag: Tag) -> list[Node]:
    """Contiguous parts of a value, just after it."""
    inside, dim = graph.module.graph, plan.cuts[value]
    anchor = value
    if value.op == "placeholder":
        anchor = graph.placeholders[-1]
    size = value_of(value).shape[dim] // plan.count
    parts = anchor = call_after(inside, anchor, ATEN.split.Tensor, (value, size, dim), tag)
    found = []
    for chunk in range(plan.count):
        piece = anchor = call_after(inside, anchor, operator.getitem, (parts, chunk), replace(tag, chunk=chunk))
        if not value_of(piece).is_contiguous():
            piece = anchor = call_after(
                inside,
                anchor,
                ATEN.clone.default,
                (piece,),
                replace(tag, chunk=chunk),
                memory_format=torch.contiguous_format,
            )
        found.append(piece)
    return found


def copy_for_chunk(graph: StepGraph, node: Node, pieces: Pieces, chunk: int) -> Node:
    """One chunk's version of a node, before it: arguments of the chunk, constants and value of the chunk node."""
    chunk_node = find_chunk_node(node)
    constants = chunk_node.constants if chunk_node is not None else {}

    def change(index: int, leaf: Any) -> Any:
        if isinstance(leaf, Node):
            return pieces[leaf][chunk] if leaf in pieces else leaf
        return constants.get(index, leaf)

    args, kwargs = map_leaves((node.args, node.kwargs), change)
    inside = graph.module.graph
    with inside.inserting_before(node):
        copy = inside.create_node(node.op, node.target, args, kwargs)
    if chunk_node is not None:
        copy.meta["val"] = copy_value(chunk_node.values[chunk % len(chunk_node.values)])
    else:
        copy.meta["val"] = infer_value(inside, copy)
    if "stack_trace" in node.meta:
        copy.meta["stack_trace"] = node.meta["stack_trace"]
    set_tag(copy, replace(tag_of(node), chunk=chunk, made_by=ChunkExperts.name()))
    return copy


def close(graph: StepGraph, plan: ChunkPlan, node: Node, parts: Sequence[Node]) -> None:
    """Readers outside of the body get the parts put together."""
    tag = make_tag(plan.body[node], node, tag_of(node).direction)
    whole = call_before(graph.module.graph, node, ATEN.cat.default, (list(parts), plan.joins[node]), tag)
    redirect(node, whole, users=[user for user in node.users if user not in plan.body and user is not whole])


def close_sum(graph: StepGraph, plan: ChunkPlan, node: Node, parts: Sequence[Node]) -> None:
    """Readers outside of the body get the sum of the parts, added in the order they come in."""
    tag = replace(tag_of(node), made_by=ChunkExperts.name(), keep=None)
    total = parts[0]
    for part in parts[1:]:
        total = call_before(graph.module.graph, node, ATEN.add.Tensor, (total, part), tag)
    redirect(node, total, users=[user for user in node.users if user not in plan.body])
