"""Compile the marked parts, each kind once."""

from dataclasses import replace

from monograph.compat.compiler import kernels_built_together
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.passes.base import Pass, Property
from monograph.passes.compile.regions import (
    CompiledRegion,
    compile_region,
    find_region,
    group_consecutive,
    make_region_key,
    replace_with_compiled,
)
from monograph.plurals import counted


class CompileRegions(Pass):
    """Replace every marked part by compiled code; parts that compute the same share it.

    Before:  a = silu(x)  # compile layers.3;  b = mul(a, y)  # compile layers.3
    After:   b = compiled_0(x, y)
    Why:     fused kernels read and write memory once. Equal blocks are compiled once, however many there are. Fusing
             changes how numbers are rounded, so this is a choice.
    """

    requires = (Property.REGIONS,)
    bitwise = False

    def run(self, graph: StepGraph, facts: Facts) -> str:
        runs = group_consecutive(graph.nodes, lambda node: tag_of(node).compile or None)
        kinds = [make_region_key(find_region(run)) for run in runs]
        codes: dict[str, tuple[str, CompiledRegion]] = {}
        with kernels_built_together(wanted=not facts.for_artifact):
            for run, kind in zip(runs, kinds, strict=True):
                if kind not in codes:
                    code = compile_region(graph, find_region(run), for_artifact=facts.for_artifact)
                    codes[kind] = f"compiled_{len(codes)}", code
        for run, kind in zip(runs, kinds, strict=True):
            tag = tag_of(run[0])
            path = tag.unit if tag.block is not None else tag.path
            made = replace(tag, path=path, slot="", role=None, compile="", keep=None, made_by=self.name())
            replace_with_compiled(graph, find_region(run), *codes[kind], made)
        graph.compiled += len(codes)
        return f"{counted(len(runs), 'region')}, {counted(len(codes), 'compilation')}"
