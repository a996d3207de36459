"""All-gather parameters in float8."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from monograph.annotate import Role
from monograph.axes import Axis
from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ATEN, WAIT_TENSOR
from monograph.graph.cast_weights import find_layouts
from monograph.graph.edit import CallMaker, erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.query import group_of, is_compute, value_of, wait_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, tag_of
from monograph.kernels.float8_shards import FLOAT8_AMAX, FLOAT8_CAST_KNOWN
from monograph.passes.base import Pass
from monograph.passes.clean.remove_dead_code import plan_dead
from monograph.passes.comm.float8_gather_plan import E4M3, Float8Gather, Piece, SharedScale, plan_gathers
from monograph.plurals import counted


class GatherFloat8(Pass):
    """Gather weights in float8 where only casts with one scale a tensor read them.

    Before:  w = all_gather(_to_copy(%p, dtype=bfloat16));  w1, s = float8_cast(w);  ...  w2, s = float8_cast(t(w))
    After:   m = all_reduce(float8_amax(%p), max);  p8, s = float8_cast_known(%p, m)
             w1 = all_gather(p8);  ...  w2 = t(w1)
    Why:     half the bytes cross the link, and half are kept where backward reads what forward gathered. Ranks agree
             on the largest magnitude of a weight first, for all weights of the step in one collective; a rank then
             casts its shard alone. A weight has one scale, so its numbers are the same by rows and transposed. Weights
             with scales of rows stay as they are: both layouts are other numbers, and a column lies on all ranks.
    """

    def skip(self, facts: Facts) -> str:
        is_sharded = any(facts.degree(axis) > 1 for axis in (Axis.FSDP, Axis.EFSDP))
        return "" if is_sharded else "no axis shards parameters"

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_gathers(graph)
        if plan:
            apply_gathers(graph, plan)
            erase(plan_dead(graph))
        count = sum(len(weight.pieces) for gather in plan for weight in gather.weights)
        return f"{counted(count, 'parameter')} in {counted(len(plan), 'all_gather')} sent in float8"


def apply_gathers(graph: StepGraph, plan: Sequence[Float8Gather]) -> None:
    """Reduce largest magnitudes first; then cast, gather bytes and read them, one all_gather after the other."""
    maker = CallMaker(graph.module.graph)
    maxima = reduce_maxima(maker, plan, next(node for node in graph.nodes if is_compute(node)))
    for gather in plan:
        parts, scales = gather_bytes(maker, gather, maxima)
        for weight in gather.weights:
            read_weight(maker, weight, [parts[piece] for piece in weight.pieces], scales[weight])


def reduce_maxima(maker: CallMaker, plan: Sequence[Float8Gather], start: Node) -> dict[tuple[Node, ...], Node]:
    """The parameters of every weight -> its largest magnitude over all shards.

    One all_reduce for each group of ranks, begun at the start of the step and waited for by the first cast. It compares
    bits, which have the order of magnitudes with NaN as the largest: NCCL's maximum of numbers would drop a NaN.
    """
    groups: dict[str, dict[Node, None]] = {}
    for gather in plan:
        found = groups.setdefault(group_of(gather.launch), {})
        found.update(dict.fromkeys(each for weight in gather.weights for each in weight.parameters))
    end, tag = plan[0].launch, Tag(role=Role.PARAM_AMAX, made_by=GatherFloat8.name())
    maxima: dict[tuple[Node, ...], Node] = {}
    for group, parameters in groups.items():
        own = [maker.call_before(start, FLOAT8_AMAX, (each,), tag) for each in parameters]
        pack = maker.call_before(start, ATEN.cat.default, (own,), tag)
        bits = maker.call_before(start, ATEN.view.dtype, (pack, torch.int32), tag)
        launch = maker.call_before(start, ALL_REDUCE, (bits, "max", group), tag)
        arrived = maker.call_before(end, WAIT_TENSOR, (launch,), tag)
        whole = maker.call_before(end, ATEN.view.dtype, (arrived, torch.float32), tag)
        parts = maker.call_before(end, ATEN.split_with_sizes.default, (whole, [1] * len(own)), tag)
        for index, each in enumerate(parameters):
            maxima[(each,)] = maker.call_before(end, operator.getitem, (parts, index), replace(tag, keep=True))
    for weight in (weight for gather in plan for weight in gather.weights):
        first, *others = (maxima[(each,)] for each in weight.parameters)
        if weight.parameters not in maxima:
            for other in others:
                first = maker.call_before(end, ATEN.maximum.default, (first, other), replace(tag, keep=True))
            maxima[weight.parameters] = first
    return maxima


def gather_bytes(
    maker: CallMaker, gather: Float8Gather, maxima: Mapping[tuple[Node, ...], Node]
) -> tuple[dict[Piece, Node], dict[SharedScale, Node]]:
    """The weights of an all_gather as bytes, and their scales; readers of its other parameters are redirected."""
    launch, wait = gather.launch, wait_of(gather.launch)
    tag = replace(tag_of(launch), made_by=GatherFloat8.name())
    sent = {piece: piece.shard for piece in gather.pieces}
    scales: dict[SharedScale, Node] = {}
    for weight in gather.weights:
        for piece in weight.pieces:
            cast = maker.call_before(launch, FLOAT8_CAST_KNOWN, (piece.parameter, maxima[weight.parameters], E4M3), tag)
            sent[piece], scale = (maker.call_before(launch, operator.getitem, (cast, index), tag) for index in (0, 1))
            scales.setdefault(weight, scale)
    bits = [maker.call_before(launch, ATEN.view.dtype, (sent[piece], torch.uint8), tag) for piece in gather.pieces]
    if not gather.is_packed:
        new = maker.call_before(launch, ALL_GATHER, (bits[0], *launch.args[1:]), tag)
        arrived = maker.call_before(wait, WAIT_TENSOR, (new,), replace(tag, keep=tag_of(wait).keep))
        return {gather.pieces[0]: arrived}, scales
    sizes = [value_of(each).numel() for each in bits]
    flat = [maker.call_before(launch, ATEN.view.default, (s, [1, n]), tag) for s, n in zip(bits, sizes, strict=True)]
    pack = maker.call_before(launch, ATEN.cat.default, (flat, 1), tag)
    pack = maker.call_before(launch, ATEN.view.default, (pack, [sum(sizes)]), tag)
    new = maker.call_before(launch, ALL_GATHER, (pack, *launch.args[1:]), tag)
    return unpack(maker, gather, new, sizes, wait), scales


def unpack(maker: CallMaker, gather: Float8Gather, launch: Node, sizes: list[int], anchor: Node) -> dict[Piece, Node]:
    """The parameters in an all_gather of bytes: weights as they are; readers of the others read them in their dtype."""
    tag = tag_of(launch)
    weights = {piece for weight in gather.weights for piece in weight.pieces}

    def call(target: Any, *args: Any, **kwargs: Any) -> Node:
        return maker.call_before(anchor, target, args, tag, **kwargs)

    table = call(ATEN.view.default, call(WAIT_TENSOR, launch), [int(launch.args[1]), sum(sizes)])  # type: ignore[arg-type]
    parts = call(ATEN.split_with_sizes.default, table, sizes, 1)
    found = {}
    for index, piece in enumerate(gather.pieces):
        shape, dtype = list(value_of(piece.gathered).shape), value_of(piece.gathered).dtype
        part = call(ATEN.clone.default, call(operator.getitem, parts, index), memory_format=torch.contiguous_format)
        if piece in weights:
            found[piece] = call(ATEN.view.default, part, shape)
        else:
            redirect(piece.gathered, call(ATEN.view.default, call(ATEN.view.dtype, part, dtype), shape))
    return found


def read_weight(maker: CallMaker, weight: SharedScale, parts: Sequence[Node], scale: Node) -> None:
    """Let matmuls read gathered bytes as float8, copied where they are read transposed."""
    tag = replace(tag_of(weight.value), made_by=GatherFloat8.name())
    whole = parts[0] if len(parts) == 1 else maker.call_before(weight.value, ATEN.cat.default, (list(parts),), tag)
    for cast in sorted(weight.casts):
        own = replace(tag_of(cast), made_by=GatherFloat8.name())
        for part in list(cast.users):
            which, number = divmod(int(part.args[1]), 2)  # type: ignore[arg-type]
            if number:
                redirect(part, scale)
                continue
            value = whole
            if find_layouts(cast)[which]:
                value = maker.call_before(cast, ATEN.t.default, (value,), own)
                value = maker.call_before(
                    cast, ATEN.clone.default, (value,), own, memory_format=torch.contiguous_format
                )
            redirect(part, maker.call_before(cast, ATEN.view.dtype, (value, E4M3), own))
