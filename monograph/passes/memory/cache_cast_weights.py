"""Weights stay in the dtype that modules compute in."""

from dataclasses import replace

from monograph.graph.cast_weights import find_castings, find_float8_only, find_stored_dtypes
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import set_tag, tag_of
from monograph.passes.base import Pass
from monograph.plurals import counted


class CacheCastWeights(Pass):
    """Mark the casts of parameters as computed once an update, not once a micro-batch.

    Before:  w = _to_copy(%wq, dtype=bfloat16);  y = mm(x, t(w))
    After:   w = _to_copy(%wq, dtype=bfloat16)  # once;  y = mm(x, t(w))
    Why:     casting reads and writes all weights in every step, although they change only with an update, and whoever
             updates them has them at hand: `optimizer.implementation single_pass` writes both. Costs no memory where
             weights are not resharded after forward, else that of all weights in the narrow dtype.
    """

    def skip(self, facts: Facts) -> str:
        if self.is_asked:
            return ""
        if facts.reshard:
            return "parallelism.reshard_after_forward is true: cached copies would cost memory"
        return (
            "" if facts.is_single_pass else "the optimizer does not write the copies (implementation single_pass does)"
        )

    def run(self, graph: StepGraph, facts: Facts) -> str:
        unread, stored = find_float8_only(graph), find_stored_dtypes(graph)
        found = {
            node: kept
            for node, kept in find_castings(graph).items()
            if node not in unread and any(stored[slot] is not kept.dtype for slot in kept.slots)
        }
        for node in found:
            set_tag(node, replace(tag_of(node), once=True))
        slots = {slot for kept in found.values() for slot in kept.slots}
        return f"{counted(len(slots), 'parameter')} cast once per update"
