"""The captured step of a small copy: one graph, or one for each stage of a pipeline, and what passes make of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from monograph.capture.capture import GraphKind, capture
from monograph.capture.source import StepSource
from monograph.execute.base import StepSettings
from monograph.execute.facts import make_facts
from monograph.execute.pipeline.build import PipelineSource, make_sources
from monograph.execute.pipeline.tied import find_tied
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph, copy_graph
from monograph.parallel.groups import Groups
from monograph.passes.runner import PassRecord, build_passes, run_passes
from monograph.run import build_source, make_example, plan_pipeline
from monograph.train.config import TrainerConfig
from monograph.verify.simulate.stages import join_stages


@dataclass(frozen=True, kw_only=True)
class CapturedStages:
    """The graphs of a step, before any pass."""

    source: StepSource
    """The whole model."""
    settings: StepSettings
    graphs: Sequence[StepGraph]
    """One for each stage of a pipeline."""
    facts: Sequence[Facts]
    """What passes may know of each."""
    plan: PipelineSource | None = None
    """How a pipeline divides the model."""

    def joined(self, graphs: Sequence[StepGraph] | None = None) -> StepGraph:
        """The whole step as one graph."""
        graphs = graphs or self.graphs
        if self.plan is None:
            return graphs[0]
        return join_stages(graphs, [each.slot.name for each in find_tied(self.plan.whole.table, self.plan.plan)])

    def optimized(self) -> list[StepGraph]:
        """The graphs after all passes."""
        passes = build_passes(self.settings.passes, self.settings.compile.numerics)
        found = [copy_graph(graph) for graph in self.graphs]
        for graph, facts in zip(found, self.facts, strict=True):
            run_passes(graph, passes, facts, is_measured=False)
        return found

    def run_passes(self, *, every_pass: bool) -> Iterator[tuple[str, StepGraph]]:
        """The whole step after each pass that changes it, or after all of them."""
        passes = build_passes(self.settings.passes, self.settings.compile.numerics)
        kept: list[dict[str, StepGraph]] = []
        for graph, facts in zip(self.graphs, self.facts, strict=True):
            after: dict[str, StepGraph] = {}

            def watch(record: PassRecord, changed: StepGraph, after: dict[str, StepGraph] = after) -> None:
                if every_pass and record.status == "ran" and record.added + record.removed + record.moved:
                    after[record.name] = copy_graph(changed)

            now = copy_graph(graph)
            run_passes(now, passes, facts, watch=watch, is_measured=False)
            kept.append(after if every_pass else {ALL_PASSES: now})
        current = list(self.graphs)
        for name in [each.name() for each in passes] if every_pass else [ALL_PASSES]:
            if any(name in after for after in kept):
                current = [after.get(name, before) for after, before in zip(kept, current, strict=True)]
                yield name, self.joined(current)


ALL_PASSES = "all passes"
"""The name of a graph after the last pass."""


def capture_step(
    config: TrainerConfig, groups: Groups, *, kind: GraphKind = "step", has_sources: bool = False
) -> CapturedStages:
    """Capture every graph of a step or of an evaluation, with the lines of its code if `has_sources`."""
    if groups.mesh.pp == 1:
        source, settings = build_source(config, groups)
        graph = capture(source, make_example(config, source), kind=kind, has_sources=has_sources)
        facts = make_facts(source.table, groups, settings)
        return CapturedStages(source=source, settings=settings, graphs=[graph], facts=[facts])
    plan = plan_pipeline(config, groups)
    _, sources = make_sources(plan, groups, tuple(range(plan.plan.count)))
    return CapturedStages(
        source=plan.whole,
        settings=plan.settings,
        graphs=[
            capture(each.source, each.inputs_of(kind), kind=kind, has_sources=has_sources) for each in sources.values()
        ],
        facts=[each.facts(groups, plan.settings) for each in sources.values()],
        plan=plan,
    )
