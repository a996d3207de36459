"""Parameters that are read side by side are stored side by side."""

from dataclasses import replace

from monograph.graph.cast_weights import CachedCast, find_castings, find_stored_dtypes
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import set_tag, tag_of
from monograph.passes.base import Pass


class JoinParameters(Pass):
    """Store parameters that merged matmuls read as one matrix in one buffer, instead of joining them in every step.

    Before:  w = cat([%wq, %wk, %wv]);  qkv = mm(x, t(w))
    After:   w = cat([%wq, %wk, %wv])  # once;  qkv = mm(x, t(w))
    Why:     `training.dtype bfloat16` needs no casts, which would write merged weights into one matrix at no cost:
             joining them reads and writes them in every step, and keeps a second copy until backward. Each parameter
             becomes a view of the buffer, so updates and checkpoints do not change.
    """

    def run(self, graph: StepGraph, facts: Facts) -> str:
        stored = find_stored_dtypes(graph)
        buffers: set[CachedCast] = set()
        joined: set[str] = set()
        for node, cast in find_castings(graph).items():
            is_plain = {stored[slot] for slot in cast.slots} == {cast.dtype}
            if is_plain and (cast in buffers or joined.isdisjoint(cast.slots)):
                set_tag(node, replace(tag_of(node), once=True))
                buffers.add(cast)
                joined.update(cast.slots)
        return f"{len(joined)} parameters are stored in {len(buffers)} buffers"
