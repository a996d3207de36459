"""Decide what backward gets from forward as it is, and what it recomputes."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from torch.fx import Node

from monograph.config.references import import_on_call
from monograph.graph.facts import Facts
from monograph.graph.query import is_backward, is_compute
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import set_tag, tag_of
from monograph.passes.base import Pass, Property
from monograph.passes.memory.policies import (
    GIB,
    is_always_kept,
    is_gathered,
    keep_selected,
    keep_selective,
    keep_within,
)
from monograph.passes.memory.saved import count_saved_bytes, find_crossing
from monograph.plurals import counted

if TYPE_CHECKING:
    from monograph.passes.memory.min_cut import plan_min_cut
else:  # networkx takes a tenth of a second
    plan_min_cut = import_on_call("monograph.passes.memory.min_cut:plan_min_cut")


class ChooseSaved(Pass):
    """Mark every forward value as saved for backward or recomputed.

    Before:  a = mm(x, w);  b = silu(a)      backward reads a and b
    After:   a = mm(x, w)  # saved;  b = silu(a)
    Why:     saved activations are most of a step's memory, and much of it is cheap to recompute. By mode:
             none saves everything; selective saves matmuls, attention, top-k and all_to_alls; min_cut does not repeat
             those either, and saves the fewest bytes that allow it; full saves block inputs and what selectors name;
             budget saves what is slowest to repeat within a number of GiB. Gathered parameters are saved only if they
             are not resharded after forward.
    """

    provides = (Property.SAVED_PLAN,)

    def reads_machine(self, facts: Facts) -> bool:
        return facts.activations.mode == "budget"

    def run(self, graph: StepGraph, facts: Facts) -> str:
        kept = self.plan(graph, facts)
        for node in graph.nodes:
            if is_compute(node) and not is_backward(node):
                set_tag(node, replace(tag_of(node), keep=node in kept))
        crossing = find_crossing(graph, kept)
        before = _show_bytes(count_saved_bytes(graph, find_crossing(graph, set(graph.nodes))))
        after = _show_bytes(count_saved_bytes(graph, crossing))
        mode = facts.activations.mode
        return f"{mode}: saved activations {before} -> {after}; {_describe(crossing.recomputed)}"

    def plan(self, graph: StepGraph, facts: Facts) -> set[Node]:
        """The forward nodes that are kept."""
        forward = [node for node in graph.nodes if is_compute(node) and not is_backward(node)]
        parameters = {node for node in forward if is_gathered(node)}
        fixed = {node for node in forward if node not in parameters and is_always_kept(node)}
        if not facts.reshard:
            fixed |= parameters
        asked = facts.activations
        if asked.mode == "none":
            return set(forward) - (parameters if facts.reshard else set())
        if asked.mode == "budget":
            return keep_within(graph, facts, fixed, asked.budget_gib * GIB)
        if asked.mode == "min_cut":
            return plan_min_cut(graph, fixed, lambda node: keep_selective(node) and node not in parameters)
        wanted = keep_selective if asked.mode == "selective" else keep_selected(asked.save, graph)
        return fixed | {node for node in forward if node not in parameters and wanted(node)}


def _show_bytes(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / (1 << 20):.1f} MiB"


def _describe(again: tuple[Node, ...]) -> str:
    blocks = Counter(tag_of(node).block for node in again)
    return f"{counted(len(again), 'value')} of {counted(len(blocks), 'block')} recomputed"
