"""Drop ops that hand their argument on unchanged."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from monograph.graph.edit import call_before, erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.query import find_storages, is_backward, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.passes.base import Pass
from monograph.plurals import counted

_ATEN = torch.ops.aten


class RemoveNoOps(Pass):
    """Drop what changes nothing: equal views, two transposes, a factor of one, a cast to a wider dtype and back.

    Before:  a = t(w);  b = t(a);  c = detach(b);  y = mm(x, c)        g = ones_like(loss);  d = mul(dw, g)
    After:   y = mm(x, w)                                             d = alias(dw)
    Why:     views cost a dispatch, hide equal values from other passes, and lengthen the text. Backward begins with
             a gradient of one, and multiplies values as large as the vocabulary with it. An alias stays where such a
             matmul led from forward to backward: a gradient must be seen to come from there. Gradients of bf16
             parameters are cast for a sum over ranks and back, also where there is nothing to sum.
    """

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_no_ops(graph)
        stand_ins: dict[Node, Node] = {}
        for node, source in plan.items():
            same = stand_ins.get(source, source)
            if node.target is _ATEN.mul.Tensor and is_backward(node) != is_backward(same):
                tag = replace(tag_of(node), made_by=self.name())
                same = call_before(node.graph, node, _ATEN.alias.default, (same,), tag)
            redirect(node, same)
            stand_ins[node] = same
        erase(plan)
        return f"{counted(len(plan), 'node')} removed"


def plan_no_ops(graph: StepGraph) -> dict[Node, Node]:
    """Node -> the earlier node with the same value, for every node that changes nothing."""
    plan: dict[Node, Node] = {}

    def follow(node: Node) -> Node:
        while node in plan:
            node = plan[node]
        return node

    storages = find_storages(graph.module.graph)
    returned = {storages[node] for node in graph.results if node is not None}
    for node in graph.nodes:
        rule = _RULES.get(node.target) if tag_of(node).made_by != RemoveNoOps.name() else None
        same = rule(node, follow) if rule else None
        if same is None:
            continue
        if any(user.op == "output" for user in node.users):
            # Outputs stay values of their own: a gradient that is also an input would be overwritten by the next step.
            owner = storages[follow(same)]
            if rule is not _cast_and_back or owner.op != "call_function" or owner in returned:
                continue
            returned.add(owner)
        plan[node] = same
    return plan


Follow = Callable[[Node], Node]


def _detach(node: Node, _follow: Follow) -> Node | None:
    return _first(node)


def _same_layout(node: Node, _follow: Follow) -> Node | None:
    """A view to the same sizes and strides."""
    source = _first(node)
    if source is None:
        return None
    old, new = value_of(source), value_of(node)
    return source if _has_same_layout(old, new) else None


def _transposed_twice(node: Node, follow: Follow) -> Node | None:
    source = _first(node)
    inner = follow(source) if source is not None else None
    return _first(inner) if inner is not None and inner.target is _ATEN.t.default else None


def _times_one(node: Node, follow: Follow) -> Node | None:
    """A multiplication by ones that leaves shape and dtype as they are."""
    for source, other in (node.args, node.args[::-1]):
        if not (isinstance(source, Node) and isinstance(other, Node)):
            continue
        if follow(other).target is not _ATEN.ones_like.default:
            continue
        if _has_same_layout(value_of(source), value_of(node)):
            return source
    return None


def _cast_and_back(node: Node, follow: Follow) -> Node | None:
    """A cast to a dtype that holds every value of the one before, and back to that one."""
    wide = follow(node.args[0]) if isinstance(node.args[0], Node) else None
    if wide is None or wide.target is not _ATEN._to_copy.default or not isinstance(wide.args[0], Node):
        return None
    source = wide.args[0]
    old, new = value_of(source), value_of(wide)
    is_exact = old.dtype.is_floating_point and torch.promote_types(old.dtype, new.dtype) is new.dtype
    return source if is_exact and old.device == new.device and _has_same_layout(old, value_of(node)) else None


def _has_same_layout(old: Any, new: Any) -> bool:
    if not (isinstance(old, Tensor) and isinstance(new, Tensor)) or old.dtype != new.dtype or old.dim() != new.dim():
        return False
    pairs = zip((*old.shape, *old.stride()), (*new.shape, *new.stride()), strict=True)
    return all(_is_same(one, other) for one, other in pairs)


def _is_same(one: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    """Equal for certain: two symbols only when they are the same expression."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    return isinstance(one, torch.SymInt) and isinstance(other, torch.SymInt) and str(one) == str(other)


def _first(node: Node) -> Node | None:
    return node.args[0] if isinstance(node.args[0], Node) else None


_RULES: dict[Any, Callable[[Node, Follow], Node | None]] = {
    _ATEN.detach.default: _detach,
    _ATEN.alias.default: _detach,
    _ATEN.t.default: _transposed_twice,
    _ATEN.view.default: _same_layout,
    _ATEN._unsafe_view.default: _same_layout,
    _ATEN.reshape.default: _same_layout,
    _ATEN.expand.default: _same_layout,
    _ATEN.slice.Tensor: _same_layout,
    _ATEN.mul.Tensor: _times_one,
    _ATEN._to_copy.default: _cast_and_back,
}
