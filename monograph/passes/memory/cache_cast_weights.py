"""Weights stay in the dtype that modules compute in."""

from dataclasses import replace

from monograph.graph.cast_weights import find_castings
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import set_tag, tag_of
from monograph.passes.base import Pass
from monograph.passes.config import CacheCastWeightsConfig


class CacheCastWeights(Pass):
    """Mark the casts of parameters as computed once an update, not once a micro-batch.

    Before:  w = _to_copy(%wq, dtype=bfloat16);  y = mm(x, t(w))
    After:   w = _to_copy(%wq, dtype=bfloat16)  # once;  y = mm(x, t(w))
    Why:     casting reads and writes all weights in every step, although they change only with an update, and whoever
             updates them has them at hand: `optimizer.implementation single_pass` writes both. Costs no memory where
             weights are not resharded after forward, else that of all weights in the narrow dtype.
    """

    Config = CacheCastWeightsConfig

    def skip(self, facts: Facts) -> str:
        return "" if self.config.enabled else "cache_cast_weights.enabled is false"

    def run(self, graph: StepGraph, facts: Facts) -> str:
        found = find_castings(graph)
        for node in found:
            set_tag(node, replace(tag_of(node), once=True))
        return f"{len({slot for kept in found.values() for slot in kept.slots})} parameters are cast once an update"
