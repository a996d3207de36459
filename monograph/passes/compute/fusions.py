"""The ways in which ops become one of ours. Each looks at one node, and either changes the graph or says no."""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from monograph.compat.ops import ATEN, UNSAFE_VIEW
from monograph.graph.edit import call_before, redirect
from monograph.graph.query import has_symbols, is_compute, is_launch, is_mutation, is_wait, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, tag_of
from monograph.kernels.attention import ATTENTION, ATTENTION_BACKWARD
from monograph.kernels.catalog import find_kernel_ops
from monograph.kernels.norm import ADD_NORM, NORM, NORM_BACKWARD_RECOMPUTE
from monograph.kernels.rope import ROPE, ROPE_PACKED
from monograph.kernels.swiglu import (
    SWIGLU,
    SWIGLU_BACKWARD,
    SWIGLU_BACKWARD_PACKED,
    SWIGLU_BACKWARD_PACKED_RECOMPUTE,
    SWIGLU_BACKWARD_RECOMPUTE,
)
from monograph.kernels.wide import ADD_WIDE

VIEWS = (ATEN.view.default, UNSAFE_VIEW)
"""Ops that only give a value another shape."""
_NAME = "fuse_kernels"


def has_fusible_ops(graph: StepGraph) -> bool:
    """Whether a step has custom ops besides attention: one without them (`model.kernels`) stays without."""
    fusible = {each.op for each in find_kernel_ops()} - {ATTENTION, ATTENTION_BACKWARD}
    return any(node.target in fusible for node in graph.nodes)


def fuse_recompute(graph: Graph, back: Node) -> bool:
    """Let a backward also compute what was to be recomputed from the same values."""
    for again in find_recomputed_forwards(back):
        sunk = plan_moves_after(again, back)
        if sunk is None:
            continue
        is_gate = back.target is SWIGLU_BACKWARD
        target = SWIGLU_BACKWARD_RECOMPUTE if is_gate else NORM_BACKWARD_RECOMPUTE
        whole = call_before(graph, back, target, back.args, _made(back))
        parts = redirect_results(graph, back, whole, {0: 0, 1: 1})
        index = parts[-1] if parts else whole
        value = again if is_gate else _part(again, 0)
        assert value is not None
        part = call_before(graph, index.next, operator.getitem, (whole, 2), replace(tag_of(value), made_by=_NAME))
        redirect(value, part)
        for node in reversed(sunk):
            part.append(node)
        return True
    return False


def find_recomputed_forwards(back: Node) -> Iterator[Node]:
    """Nodes of a backward's own direction that compute from the values it reads what its forward computed."""
    is_gate = back.target is SWIGLU_BACKWARD
    _, x, other, *_ = back.args
    assert isinstance(x, Node)
    for node in list(x.users):
        if node.target is not (SWIGLU if is_gate else NORM) or tag_of(node).direction is not tag_of(back).direction:
            continue
        is_same = node.args[0] is x and is_same_value(node.args[1], other)
        if is_same and (is_gate or (_part(node, 0) is not None and _part(node, 1) is None and has_eps_of(node, back))):
            yield node


def has_eps_of(norm: Node, back: Node) -> bool:
    """Whether a norm adds the same number as the one whose backward this is."""
    scale = back.args[3]
    source = scale.args[0] if isinstance(scale, Node) and scale.target is operator.getitem else None
    return isinstance(source, Node) and source.target in (NORM, ADD_NORM) and source.args[-1] == norm.args[-1]


def plan_moves_after(again: Node, back: Node) -> list[Node] | None:
    """What has to move behind the backward because it reads what will come from there; None when it must not move."""
    reached, found = {again}, []
    for node in find_between(again, back):
        if is_mutation(node):  # what moves might read what this writes
            return None
        if reached.isdisjoint(node.all_input_nodes):
            continue
        if node is back or is_launch(node) or is_wait(node) or not is_compute(node):
            return None
        reached.add(node)
        if not (node.target is operator.getitem and node.args[0] is again):
            found.append(node)
    return found


def fuse_joined(graph: Graph, cat: Node) -> bool:
    """Let a gate's backward write both gradients where they are put side by side."""
    parts: Any = cat.args[0]
    if len(parts) != 2 or len(cat.args) != 2 or has_symbols(value_of(cat)):
        return False
    sources = [find_source(part) for part in parts]
    if [each.target for each in sources] != [operator.getitem] * 2 or [each.args[1] for each in sources] != [0, 1]:
        return False
    back, value = sources[0].args[0], value_of(cat)
    is_last = cat.args[1] in (value.dim() - 1, -1)
    if not isinstance(back, Node) or back is not sources[1].args[0] or not is_last:
        return False
    is_whole = all(
        value_of(part).shape[-1] == value_of(source).shape[-1] for part, source in zip(parts, sources, strict=True)
    )
    if back.target not in (SWIGLU_BACKWARD, SWIGLU_BACKWARD_RECOMPUTE) or not is_whole:
        return False
    chain = {node for part in parts for node in _chain(part)}
    if any(user not in chain and user is not cat for node in chain for user in node.users):
        return False
    has_again = back.target is SWIGLU_BACKWARD_RECOMPUTE
    target = SWIGLU_BACKWARD_PACKED_RECOMPUTE if has_again else SWIGLU_BACKWARD_PACKED
    whole = call_before(graph, back, target, back.args, _made(back))
    both = whole
    if has_again:
        both = call_before(graph, back, operator.getitem, (whole, 0), _made(back))
        redirect_results(graph, back, whole, {2: 1})
    redirect(cat, call_before(graph, cat, ATEN.view.default, (both, list(value.shape)), _made(cat)))
    return True


def fuse_rotations(graph: Graph, cat: Node) -> bool:
    """Let rotations of queries and keys write where their results are put side by side with the values."""
    parts: Any = cat.args[0]
    value = value_of(cat)
    if len(parts) != 3 or cat.args[1:] not in ((1,), (-1,)) or value.dim() != 2 or has_symbols(value):
        return False
    sources = [find_source(part) for part in parts]
    *turned, values = sources
    if any(each.target is not ROPE for each in turned) or turned[0].args[1:] != turned[1].args[1:]:
        return False
    shapes = [tuple(value_of(each).shape) for each in sources]
    tokens = {shape[:2] for shape in shapes if len(shape) == 4}
    if len(tokens) != 1 or any(len(shape) != 4 for shape in shapes) or shapes[0][3] != shapes[1][3]:
        return False
    is_flat = all(value_of(part).shape[1] == shape[2] * shape[3] for part, shape in zip(parts, shapes, strict=True))
    chain = {node for part in parts for node in _chain(part)} - {values}
    if not is_flat or any(user not in chain and user is not cat for node in chain for user in node.users):
        return False
    if any(map(is_mutation, find_between(min(turned), cat))):
        return False
    heads = [each.args[0] for each in turned]
    joined = call_before(graph, cat, ROPE_PACKED, (*heads, values, *turned[0].args[1:]), _made(cat))
    redirect(cat, call_before(graph, cat, ATEN.view.default, (joined, list(value.shape)), _made(cat)))
    return True


def fuse_sum_before(graph: Graph, norm: Node) -> bool:
    """Let a norm compute the sum it reads."""
    total = norm.args[0]
    assert isinstance(total, Node)
    if not is_plain_sum(total) or any(user < norm for user in total.users):
        return False
    if any(map(is_mutation, find_between(total, norm))):
        return False
    whole = call_before(graph, norm, ADD_NORM, (*total.args, *norm.args[1:]), _made(norm))
    # The norm may be the next block's. Then so is the sum: a block's nodes stand together, and equal blocks read alike.
    summed = call_before(graph, norm, operator.getitem, (whole, 0), replace(_made(norm), keep=tag_of(total).keep))
    redirect(total, summed)
    redirect_results(graph, norm, whole, {0: 1, 1: 2})
    return True


def fuse_sum_after(graph: Graph, back: Node) -> bool:
    """Let a norm's backward add the gradient that comes past the norm."""
    of_x = _part(back, 0)
    if of_x is None or len(of_x.users) != 1 or back.args[4] is not None:
        return False
    (total,) = of_x.users
    if not is_plain_sum(total):
        return False
    (other,) = [each for each in total.args if each is not of_x] or [of_x]
    if not isinstance(other, Node) or other is of_x or not other < back:
        return False
    whole = call_before(graph, back, back.target, (*back.args[:4], other), _made(back))
    summed = call_before(graph, back, operator.getitem, (whole, 0), replace(tag_of(total), made_by=_NAME))
    redirect(total, summed)
    redirect_results(graph, back, whole, {1: 1, 2: 2})
    return True


def fuse_casts(graph: Graph, total: Node) -> bool:
    """Add two values in fp32 without writing them in fp32 first."""
    casts = [each for each in total.args if isinstance(each, Node) and each.target is ATEN._to_copy.default]
    if len(casts) != 2 or not is_plain_sum(total) or any(len(each.users) > 1 for each in casts):
        return False
    narrow = [each.args[0] for each in casts]
    values = [value_of(each) for each in (*narrow, *casts)]  # type: ignore[arg-type]
    dtypes = [value.dtype for value in values]
    is_wider = dtypes == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    if not is_wider or len({value.device for value in values}) > 1 or not all(map(_is_dense, values)):
        return False
    if any(map(is_mutation, find_between(min(casts), total))):
        return False
    redirect(total, call_before(graph, total, ADD_WIDE, tuple(narrow), replace(tag_of(total), made_by=_NAME)))
    return True


def _is_dense(value: Any) -> bool:
    return bool(value.is_contiguous())


def is_plain_sum(node: Node) -> bool:
    """Whether a node adds two tensors of the same form."""
    if node.target is not ATEN.add.Tensor or node.kwargs or not all(isinstance(each, Node) for each in node.args):
        return False
    values = [value_of(each) for each in (node, *node.args)]  # type: ignore[arg-type]
    return len({(tuple(map(str, value.shape)), value.dtype) for value in values}) == 1


def is_same_value(one: Any, other: Any) -> bool:
    """Whether two nodes compute the same: the same node, or the same cast of the same."""
    if one is other:
        return True
    if not (isinstance(one, Node) and isinstance(other, Node)) or one.target is not other.target:
        return False
    is_cast = one.target is ATEN._to_copy.default and one.kwargs == other.kwargs
    return is_cast and is_same_value(one.args[0], other.args[0])


def redirect_results(graph: Graph, old: Node, new: Node, indices: Mapping[int, int]) -> list[Node]:
    """Let readers of an op's results read those of another; `indices` says which result became which."""
    made = []
    for user in [each for each in old.users if each.target is operator.getitem]:
        index = indices.get(user.args[1])  # type: ignore[arg-type]
        if index is not None:
            part = call_before(graph, old, operator.getitem, (new, index), tag_of(user))
            redirect(user, part)
            made.append(part)
    return made


def _made(node: Node) -> Tag:
    return replace(tag_of(node), made_by=_NAME)


def _part(node: Node, index: int) -> Node | None:
    """The node that takes one result of an op, when it is read."""
    found = [user for user in node.users if user.target is operator.getitem and user.args[1] == index and user.users]
    return found[0] if len(found) == 1 else None


def find_source(node: Node) -> Node:
    """What a value is a view of."""
    return list(_chain(node))[-1]


def _chain(node: Node) -> Iterator[Node]:
    """A value and what it is a view of."""
    yield node
    while node.target in VIEWS:
        node = node.args[0]  # type: ignore[assignment]
        yield node


def find_between(first: Node, last: Node) -> Iterator[Node]:
    """The nodes from after `first` to `last`; none when `last` comes before."""
    if last < first:
        return
    node = first.next
    while node is not last:
        yield node
        node = node.next
    yield last
