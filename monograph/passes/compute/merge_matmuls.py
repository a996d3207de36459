"""Fewer, larger matmuls."""

import operator
from dataclasses import dataclass, field, replace

import torch
from torch.fx import Graph, Node

from monograph.annotate import Direction
from monograph.compat.ops import ATEN
from monograph.graph.edit import call_before, erase, redirect, refresh
from monograph.graph.facts import Facts
from monograph.graph.query import alias_of, is_backward, is_compute, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, tag_of
from monograph.passes.base import Pass
from monograph.passes.clean.remove_dead_code import plan_dead
from monograph.passes.compute.matmuls import MatmulGroup, MatmulSum, plan_groups, plan_sums
from monograph.passes.compute.merge_matmuls_options import MergeMatmulsConfig
from monograph.plurals import counted


class MergeMatmuls(Pass):
    """Matmuls that share an operand, and matmuls that are added up, become one.

    Before:  q = mm(x, t(wq));  k = mm(x, t(wk));  ...  dx = add(mm(dq, wq), mm(dk, wk))
    After:   w = cat([wq, wk]);  q, k = split(mm(x, t(w)));  ...  dx = mm(cat([dq, dk]), w)
    Why:     one large matmul keeps a GPU busier than a small one beside a large one, reads the shared operand once,
             and adds up in fp32 inside of the matmul. A compiler that casts the weights writes them into one matrix
             at no cost.
    """

    Config = MergeMatmulsConfig
    bitwise = False

    def run(self, graph: StepGraph, facts: Facts) -> str:
        inside = graph.module.graph
        packs = Packs(inside)
        sums = plan_sums(graph.nodes, self.config.max_columns)
        ranks = {key: index for each in sums for index, key in enumerate(each.left_keys)}
        for each in sums:
            apply_sum(inside, each, packs)
        groups = plan_groups(graph.nodes, ranks, self.config.max_columns)
        for group in groups:
            apply_group(inside, group, packs)
        erase(plan_dead(graph))
        joined = [each.matmuls for each in sums] + [each.matmuls for each in groups]
        return f"{counted(sum(map(len, joined)), 'matmul')} merged into {len(joined)}"


@dataclass
class Packs:
    """Matrices side by side, each set of them once."""

    graph: Graph
    made: dict[tuple[object, ...], Node] = field(default_factory=dict)

    def get(self, parts: list[Node], keys: list[object], dim: int, anchor: Node, tag: Tag) -> Node:
        """All of them in one, made where the last of them is known, or before `anchor` if they are inputs."""
        key = (dim, *keys)
        if key not in self.made or anchor < self.made[key]:
            index = anchor
            if all(is_compute(part) for part in parts):
                kept = all(tag_of(part).keep for part in parts)
                tag, index = _common_tag(parts, keep=True if kept else None), max(parts).next
            self.made[key] = call_before(self.graph, index, ATEN.cat.default, (parts, dim), tag)
        return self.made[key]


def apply_sum(graph: Graph, plan: MatmulSum, packs: Packs) -> None:
    """One matmul instead of a sum of matmuls; whatever else was added is added after it."""
    root, tag = plan.root, replace(_common_tag(plan.matmuls), gradient_of=tag_of(plan.root).gradient_of)
    left = packs.get(plan.lefts, plan.left_keys, 1, root, tag)
    right = packs.get(plan.rights, plan.right_keys, 0, root, tag)
    found = call_before(graph, root, ATEN.mm.default, (left, right), tag)
    found = call_before(graph, root, ATEN.view.default, (found, list(value_of(root).shape)), tag)
    for other in plan.others:
        found = call_before(graph, root, ATEN.add.Tensor, (found, other), tag_of(root))
    redirect(root, found)


def apply_group(graph: Graph, plan: MatmulGroup, packs: Packs) -> None:
    """One matmul and its parts instead of several; what reads them now reads views of a larger matrix."""
    tag = replace(_common_tag(plan.matmuls), keep=tag_of(plan.matmuls[0]).keep)
    pack = packs.get(plan.parts, plan.part_keys, 0 if plan.is_left_shared else 1, plan.anchor, tag)
    turned = call_before(graph, plan.anchor, ATEN.t.default, (pack,), tag)
    operands = (plan.shared, turned) if plan.is_left_shared else (turned, plan.shared)
    joined = call_before(graph, plan.anchor, ATEN.mm.default, operands, tag)
    dim = 1 if plan.is_left_shared else 0
    sizes = [value_of(matmul).shape[dim] for matmul in plan.matmuls]
    parts = call_before(graph, plan.anchor, ATEN.split_with_sizes.default, (joined, sizes, dim), tag)
    kept = [is_kept(matmul) for matmul in plan.matmuls]
    for index, matmul in enumerate(plan.matmuls):
        own = replace(tag_of(matmul), made_by=tag.made_by)
        part = call_before(graph, plan.anchor, operator.getitem, (parts, index), own)
        if kept[index] and not all(kept):  # what backward reads must not hold on to what it does not
            part = call_before(
                graph, plan.anchor, ATEN.clone.default, (part,), own, memory_format=torch.contiguous_format
            )
        redirect(matmul, part)
        refresh(graph, part)


def is_kept(node: Node) -> bool:
    """Whether backward reads the memory of a forward node's value."""
    if tag_of(node).direction is Direction.BACKWARD:
        return False
    users = list(node.users)
    return any(is_backward(user) or (alias_of(user) is node and is_kept(user)) for user in users)


def _common_tag(nodes: list[Node], keep: bool | None = None) -> Tag:
    """The tag of something that belongs to several modules: to the one that holds them."""
    tags = [tag_of(node) for node in nodes]
    paths = [(tag.slot or tag.path).split(".") for tag in tags]
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    first = tags[0]
    is_one = len({tag.unit for tag in tags}) == 1
    return Tag(
        path=".".join(common),
        unit=first.unit if is_one else "",
        block=first.block if is_one else None,
        direction=first.direction,
        chunk=first.chunk,
        keep=keep,
        made_by="merge_matmuls",
    )
