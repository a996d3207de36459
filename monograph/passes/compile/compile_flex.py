"""Compile FlexAttention, each kind once."""

import operator
from dataclasses import replace

from torch.fx import Node

from monograph.compat.compiler import kernels_built_together
from monograph.compat.flex import FLEX_ATTENTION, FLEX_ATTENTION_BACKWARD
from monograph.errors import ConfigError
from monograph.graph.facts import Facts
from monograph.graph.query import value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.passes.base import Pass
from monograph.passes.compile.regions import (
    CompiledRegion,
    Region,
    compile_region,
    find_region,
    is_inner_graph,
    make_region_key,
    replace_with_compiled,
)
from monograph.plurals import counted


class CompileFlex(Pass):
    """Replace every FlexAttention on a GPU, forward and backward, by compiled code; layers of one kind share it.

    Before:  out, lse = flex_attention(q, k, v, score_function, (tables, mask_function))
    After:   out, lse = compiled_0(q, k, v, tables)
    Why:     uncompiled it computes and keeps all scores. Op by op a GPU runs the same compiled code, so that no bit
             changes. Parts of the step that are compiled as a whole have their FlexAttention compiled with them.
    """

    def skip(self, facts: Facts) -> str:
        return "" if facts.device == "cuda" else "captured without a GPU: its reference computes FlexAttention"

    def run(self, graph: StepGraph, facts: Facts) -> str:
        regions = plan_flex_regions(graph)
        codes: dict[str, tuple[str, CompiledRegion]] = {}
        with kernels_built_together(wanted=not facts.for_artifact):
            for key, region in regions:
                if key not in codes:
                    code = compile_region(graph, region, for_artifact=facts.for_artifact)
                    codes[key] = f"compiled_{graph.compiled + len(codes)}", code
        for key, region in regions:
            made = replace(tag_of(region.nodes[0]), made_by=self.name())
            # What a backward reads of its forward is the compiled forward's by now.
            replace_with_compiled(graph, find_region(region.nodes), *codes[key], made)
        graph.compiled += len(codes)
        return f"{counted(len(regions), 'attention')}, {counted(len(codes), 'compilation')}"


def plan_flex_regions(graph: StepGraph) -> list[tuple[str, Region]]:
    """Each FlexAttention with what is read of it, by a key that is equal for those that share compiled code."""
    found = []
    forms: dict[tuple[object, ...], tuple[str, Node]] = {}
    for node in graph.nodes:
        if node.target not in (FLEX_ATTENTION, FLEX_ATTENTION_BACKWARD):
            continue
        region = find_region([node, *bring_results_home(node)])
        key = make_region_key(region)
        mods = tuple(str(each.target) for each in node.all_input_nodes if is_inner_graph(each))
        kind = (node.target, mods, tag_of(node).chunk is not None, len(region.outputs))
        known, first = forms.setdefault(kind, (key, node))
        if known != key:
            raise ConfigError(
                f"FlexAttention of {tag_of(first).path} and {tag_of(node).path} would be compiled twice",
                why=f"they compute the same on {show_form(first)} and on {show_form(node)}",
                do="give all layers of a kind heads of one size and sequences of one length",
            )
        found.append((key, region))
    return found


def bring_results_home(node: Node) -> list[Node]:
    """Put the results of an op right after it: they are replaced together."""
    results = [user for user in node.users if user.target is operator.getitem]
    for last, result in zip((node, *results), results, strict=False):
        if result is not last.next:
            last.append(result)
    return results


def show_form(node: Node) -> str:
    """Shapes and strides of q, k and v."""
    return ", ".join(f"{list(value_of(each).shape)} {value_of(each).stride()}" for each in node.all_input_nodes[:3])
