"""One collective per block instead of one per parameter."""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from monograph.annotate import Role
from monograph.axes import Axis
from monograph.compat.ops import ALL_GATHER, ATEN, REDUCE_SCATTER, WAIT_TENSOR
from monograph.graph.edit import CallMaker, erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.query import is_launch, value_of, wait_of
from monograph.graph.schedule import find_early_readers, find_late_arguments, move_after, move_before
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, tag_of
from monograph.passes.base import Pass, Property
from monograph.passes.comm.bucket_collectives_options import BucketCollectivesConfig
from monograph.plurals import counted


@dataclass(frozen=True)
class Bucket:
    """Collectives of one kind, over one group, of one block's parameters."""

    launches: tuple[Node, ...]
    """In the order of the parameter table."""

    @property
    def is_gather(self) -> bool:
        """Gathers start when the first of them would; sums wait for the last gradient."""
        return self.launches[0].target is ALL_GATHER


class BucketCollectives(Pass):
    """Join the parameter gathers of a block into one collective, and its gradients' scatters and sums as well.

    Before:  w1 = gather(p1);  w2 = gather(p2)
    After:   b = gather(cat(p1, p2));  w1, w2 = split(b)
    Why:     one large collective uses the link better than many small ones. Parameters are packed in the order of the
             table, out of place, so that no rank's number enters the graph and sums keep their order.
    """

    Config = BucketCollectivesConfig
    requires = (Property.SHARED_GATHERS,)
    provides = (Property.BUCKETS,)

    def skip(self, facts: Facts) -> str:
        axes = (Axis.FSDP, Axis.EFSDP, Axis.DP_REPLICATE, Axis.TP)
        return "" if any(facts.degree(axis) > 1 for axis in axes) else "no axis shards or replicates parameters"

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_buckets(graph, facts, self.config.max_bytes)
        maker = CallMaker(graph.module.graph)
        for bucket in plan:
            apply_bucket(maker, bucket)
        return f"{counted(sum(len(bucket.launches) for bucket in plan), 'collective')} merged into {len(plan)}"


def plan_buckets(graph: StepGraph, facts: Facts, max_bytes: int) -> list[Bucket]:
    """Collectives that belong together: same kind, group, dtype, half of the step and unit of the model."""
    found: dict[tuple[Any, ...], list[Node]] = {}
    for node in graph.nodes:
        tag = tag_of(node)
        if is_launch(node) and tag.role in (Role.PARAM_ALL_GATHER, Role.GRAD_REDUCE_SCATTER) and tag.slot:
            key = (node.target, *map(str, node.args[1:]), value_of(node).dtype, tag.direction, tag.unit)
            times = sum(tag_of(other).slot == tag.slot for other in found.get((*key, 0), []))
            found.setdefault((*key, times), []).append(node)
    buckets = []
    for launches in found.values():
        ordered = sorted(launches, key=lambda node: facts.slot_index(tag_of(node).slot))
        buckets += [Bucket(tuple(part)) for part in cut(ordered, max_bytes) if len(part) > 1]
    return buckets


def cut(launches: list[Node], max_bytes: int) -> Iterator[list[Node]]:
    """Runs of launches whose results fit into a bucket."""
    part: list[Node] = []
    filled = 0
    for node in launches:
        size = value_of(node).numel() * value_of(node).element_size()
        if part and filled + size > max_bytes:
            yield part
            part, filled = [], 0
        part.append(node)
        filled += size
    yield part


def apply_bucket(maker: CallMaker, bucket: Bucket) -> None:
    """Pack, collective once, unpack; then move what was in the way."""
    launches, waits = bucket.launches, [wait_of(node) for node in bucket.launches]
    first, last = min(launches), max(launches)
    anchor = first if bucket.is_gather else last
    if bucket.is_gather:
        move_before(anchor, find_late_arguments([_source(node) for node in launches], anchor))
    else:
        displaced = find_early_readers(waits, anchor)
        move_after(anchor, displaced)
    parts = pack_and_send(maker, bucket, anchor)
    for launch, wait, part in zip(launches, waits, parts, strict=True):
        redirect(wait, part)
        erase([launch, wait])


def pack_and_send(maker: CallMaker, bucket: Bucket, anchor: Node) -> list[Node]:
    """The collectives' results, in order, from one collective before `anchor`."""
    first, tag = bucket.launches[0], tag_of(bucket.launches[0])
    common = Tag(
        path=tag.unit,
        unit=tag.unit,
        block=tag.block,
        direction=tag.direction,
        role=tag.role,
        made_by=BucketCollectives.name(),
    )

    def call(target: Any, *args: Any, **kwargs: Any) -> Node:
        return maker.call_before(anchor, target, args, common, **kwargs)

    ranks = int(first.args[-2]) if first.target in (ALL_GATHER, REDUCE_SCATTER) else 1  # type: ignore[arg-type]
    before, after = (ranks, 1) if first.target is REDUCE_SCATTER else (1, ranks if first.target is ALL_GATHER else 1)
    sources = [_source(node) for node in bucket.launches]
    lengths = [value_of(source).numel() // before for source in sources]
    flat = [call(ATEN.view.default, s, [before, n]) for s, n in zip(sources, lengths, strict=True)]
    packed = call(ATEN.view.default, call(ATEN.cat.default, flat, 1), [before * sum(lengths)])
    arrived = call(WAIT_TENSOR, call(first.target, packed, *first.args[1:]))
    # One row is cut as a line: as a table, its pieces would remember the row's length in their strides.
    table = arrived if after == 1 else call(ATEN.view.default, arrived, [after, sum(lengths)])
    pieces = call(ATEN.split_with_sizes.default, table, lengths, 0 if after == 1 else 1)
    parts = []
    for index, launch in enumerate(bucket.launches):
        piece = call(operator.getitem, pieces, index)
        if after > 1:
            piece = call(ATEN.clone.default, piece, memory_format=torch.contiguous_format)
        parts.append(call(ATEN.view.default, piece, list(value_of(launch).shape)))
    return parts


def _source(launch: Node) -> Node:
    source = launch.args[0]
    assert isinstance(source, Node)
    return source
