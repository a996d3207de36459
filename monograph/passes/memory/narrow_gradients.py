"""Gradients leave the step in the dtype they were computed in."""

from dataclasses import replace

import torch
from torch.fx import Node

from monograph.compat.ops import ATEN
from monograph.graph.edit import erase
from monograph.graph.facts import Facts
from monograph.graph.invariants import find_gradients
from monograph.graph.query import value_of
from monograph.graph.step_graph import StepGraph
from monograph.passes.base import Pass
from monograph.plurals import counted


class NarrowGradients(Pass):
    """Return the gradients that are only cast at the end as they were before the cast.

    Before:  g = mm(t(dy), x);  w = _to_copy(g, dtype=float32);  return w
    After:   g = mm(t(dy), x);  return g
    Why:     the cast adds no information: it writes every gradient once more, at twice the size. Where gradients of
             several micro-batches or ranks are added, they are added in the reduce dtype as before.
    """

    def skip(self, facts: Facts) -> str:
        return (
            "" if facts.is_single_pass else "the optimizer reads wide gradients (implementation single_pass does not)"
        )

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_narrow(graph)
        (output,) = graph.module.graph.find_nodes(op="output")
        for cast, source in plan.items():
            output.replace_input_with(cast, source)
        erase(plan)
        if plan and graph.properties is not None:
            found = tuple(value_of(node).dtype for node in graph.results if node is not None)
            graph.properties = replace(graph.properties, dtypes=found)
        return f"{counted(len(plan), 'gradient')} returned in the dtype of the backward"


def plan_narrow(graph: StepGraph) -> dict[Node, Node]:
    """Cast -> what it casts, for every gradient that is nothing but a wider copy of another value."""
    plan: dict[Node, Node] = {}
    returned = set(graph.results)
    for _, node in find_gradients(graph):
        source = node.args[0] if node.target is ATEN._to_copy.default else None
        if not isinstance(source, Node) or len(node.users) > 1 or source in returned or source in plan.values():
            continue
        old, new = value_of(source).dtype, value_of(node).dtype
        is_exact = torch.promote_types(old, new) is new and old.is_floating_point
        if is_exact and old is not new and value_of(source).stride() == value_of(node).stride():
            plan[node] = source
    return plan
