"""Parameters that are read side by side are stored side by side."""

from dataclasses import replace

from monograph.graph.cast_weights import find_castings, pick_joined
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import set_tag, tag_of
from monograph.passes.base import Pass
from monograph.plurals import counted


class JoinParameters(Pass):
    """Store parameters that merged matmuls read as one matrix in one buffer, instead of joining them in every step.

    Before:  w = cat([%wq, %wk, %wv]);  qkv = mm(x, t(w))
    After:   w = cat([%wq, %wk, %wv])  # once;  qkv = mm(x, t(w))
    Why:     `training.dtype bfloat16` needs no casts, which would write merged weights into one matrix at no cost:
             joining them reads and writes them in every step, and keeps a second copy until backward. Each parameter
             becomes a view of the buffer, so updates and checkpoints do not change.
    """

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = pick_joined(graph, find_castings(graph).items())
        for node in plan:
            set_tag(node, replace(tag_of(node), once=True))
        buffers = set(plan.values())
        parameters = sum(len(each.slots) for each in buffers)
        return f"{counted(parameters, 'parameter')} stored in {counted(len(buffers), 'buffer')}"
