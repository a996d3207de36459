"""Neighbours that one kernel of ours does together."""

from monograph.compat.ops import ATEN
from monograph.graph.edit import erase
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.kernels.norm import NORM, NORM_BACKWARD, NORM_BACKWARD_RECOMPUTE
from monograph.kernels.swiglu import SWIGLU_BACKWARD
from monograph.passes.base import Pass
from monograph.passes.clean.remove_dead_code import plan_dead
from monograph.passes.compute.fusions import (
    fuse_casts,
    fuse_joined,
    fuse_recompute,
    fuse_rotations,
    fuse_sum_after,
    fuse_sum_before,
    has_fusible_ops,
)
from monograph.plurals import counted


class FuseKernels(Pass):
    """Custom ops that read the same memory become one, with the additions around them.

    Before:  s = add(h, d);  y, r = norm(s, w)         a = gate(x, up);  gx, gup = swiglu_backward(g, x, up)
    After:   s, y, r = add_norm(h, d, w)               gx, gup, a = swiglu_backward_recompute(g, x, up)
    Why:     norms and gates are as fast as memory is, and neighbours read the same values: a norm's input is the sum
             before it, a backward reads what the gate or norm that is recomputed there reads. Each is rounded
             where it was rounded before, so every bit stays. Comes after compilers, which fuse what they were given.
             Steps without custom ops (`model.kernels`) stay without.
    """

    def run(self, graph: StepGraph, facts: Facts) -> str:
        if not has_fusible_ops(graph):
            return "no custom ops to fuse"
        stages = (
            (fuse_recompute, (NORM_BACKWARD, SWIGLU_BACKWARD)),
            (fuse_joined, (ATEN.cat.default,)),
            (fuse_rotations, (ATEN.cat.default,)),
            (fuse_sum_before, (NORM,)),
            (fuse_sum_after, (NORM_BACKWARD, NORM_BACKWARD_RECOMPUTE)),
            (fuse_casts, (ATEN.add.Tensor,)),
        )
        counts = []
        for fuse, targets in stages:
            nodes = [node for node in graph.nodes if node.op == "call_function" and node.target in targets]
            counts.append(sum(fuse(graph.module.graph, node) for node in nodes))
            erase(plan_dead(graph))
        again, joined, turned, before, after, cast = counts
        fused = {
            f"{before} forward and {counted(after, 'backward add')} into norms": before + after,
            f"{counted(again, 'recomputation')} into backward kernels": again,
            f"{joined} SwiGLU and {counted(turned, 'QKV gradient concat')}": joined + turned,
            f"{counted(cast, 'cast')} into adds": cast,
        }
        return ", ".join(text for text, count in fused.items() if count) or "nothing to fuse"
