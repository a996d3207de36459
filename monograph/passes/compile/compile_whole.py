"""One compiler for everything."""

from monograph.annotate import Direction
from monograph.compat.compiler import kernels_built_together
from monograph.graph.facts import Facts
from monograph.graph.query import is_backward, is_compute
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag
from monograph.passes.base import Pass
from monograph.passes.compile.regions import compile_region, find_region, replace_with_compiled
from monograph.plurals import counted


class CompileWhole(Pass):
    """Hand the whole step, collectives included, to Inductor.

    Before:  every op of the step
    After:   loss, gradients = compiled(inputs)
    Why:     the fewest kernels and the least memory traffic there are; rounding differs from the eager step, and the
             graph can no longer be read op by op. Runs last.
    """

    bitwise = False

    def run(self, graph: StepGraph, facts: Facts) -> str:
        nodes = [node for node in graph.nodes if is_compute(node)]
        if len(nodes) == 1 + len(graph.outputs):
            return "compiled already"
        region = find_region(nodes)
        has_backward = any(is_backward(node) for node in nodes)  # an evaluation has none
        tag = Tag(direction=Direction.BACKWARD if has_backward else Direction.FORWARD, made_by=self.name())
        with kernels_built_together(wanted=not facts.for_artifact):
            code = compile_region(graph, region, for_artifact=facts.for_artifact)
        replace_with_compiled(graph, region, "compiled", code, tag)
        graph.compiled += 1
        graph.properties = None  # checked up to here; compiled code cannot be checked
        return f"{counted(len(nodes), 'node')} compiled as one call"
