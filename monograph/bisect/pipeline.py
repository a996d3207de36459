"""Which stage of a pipeline changed a number, and which pass and node there.

Every stage is replayed by itself, on the carry and the gradient of a run of all stages: what one stage computes wrong
is the input of its neighbours, not their fault. Ranks of one stage replay together; stages do not wait for each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from monograph.bisect.captures import compare_captures, compare_with_modules, find_restart
from monograph.bisect.search import EXECUTION, Finding, blame_passes, find_base
from monograph.bisect.stages import PassedGraph, build_stages
from monograph.execute.pipeline.build import make_sources
from monograph.execute.pipeline.step import PipelineStep
from monograph.graph.inputs import StepInputs
from monograph.parallel.groups import Groups
from monograph.passes.runner import build_passes
from monograph.run import plan_pipeline
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch

Findings = dict[str, Finding]
ByStage = Mapping[int, list[PassedGraph]]


def explain_pipeline(
    steps: Mapping[str, PipelineStep],
    configs: Mapping[str, TrainerConfig],
    groups: Groups,
    micro: Sequence[Batch],
    computed: Mapping[str, Mapping[str, Tensor]],
    *,
    tolerance: float,
) -> Findings:
    """What changed loss or gradients, as this rank sees it; nothing where the fault is in another rank's stage."""
    graphs = {name: make_stage_graphs(configs[name], step, groups) for name, step in steps.items() if step.captured}
    restart = find_restart(configs.values())
    first = next(iter(steps.values()))
    tensors = [batch.tensors for batch in micro]
    scalars = first.compute_scalars(tensors)
    for batch in tensors:
        carried = first.record_inputs(batch, scalars)
        found = {
            name: finding
            for name, stages in graphs.items()
            if (finding := blame_stages(stages, steps[name], carried, groups, tolerance=tolerance, restart=restart))
        }
        if groups.any_rank(bool(found)):
            return found
    if len(graphs) == 2:
        carried = first.record_inputs(tensors[0], scalars)
        given = list(graphs.values()), list(steps.values()), carried
        captured = compare_stage_captures(*given, tolerance=tolerance, restart=restart)
        if groups.any_rank(captured is not None):
            return {"both": captured} if captured else {}
    if len(graphs) == 1:
        (name,) = graphs
        (other,) = steps.keys() - graphs.keys()
        recorded = [steps[other].record_inputs(batch, scalars) for batch in tensors]
        compared = graphs[name], steps[name], recorded, computed[other]
        wrong = compare_with_eager(*compared, tolerance=tolerance, restart=restart)
        if groups.any_rank(wrong is not None):
            return {name: wrong} if wrong else {}
    return {"both": EXECUTION}


def make_stage_graphs(config: TrainerConfig, step: PipelineStep, groups: Groups) -> ByStage:
    """The graphs of this rank's stages after every pass."""
    pipeline = plan_pipeline(config, groups)
    settings = pipeline.settings
    _, sources = make_sources(pipeline, groups, tuple(step.stages))
    passes = build_passes(settings.passes, settings.compile.numerics)
    return {
        number: build_stages(found.source, found.inputs, found.facts(groups, settings), passes)
        for number, found in sources.items()
    }


def blame_stages(
    graphs: ByStage,
    step: PipelineStep,
    carried: Mapping[int, StepInputs],
    groups: Groups,
    *,
    tolerance: float,
    restart: str,
) -> Finding | None:
    """The first stage of this rank in which a pass changed an output; None when none did."""
    for number, stages in graphs.items():
        inputs = with_buffers(carried[number], step)
        agree = groups.any_rank_of_stage
        found = blame_passes(stages, inputs, tolerance=tolerance, agree=agree, restart=restart)
        if found is not None:
            return replace(found, stage=number)
    return None


def compare_stage_captures(
    graphs: Sequence[ByStage],
    steps: Sequence[PipelineStep],
    carried: Mapping[int, StepInputs],
    *,
    tolerance: float,
    restart: str,
) -> Finding | None:
    """The first stage of this rank that both sides capture differently."""
    for number in graphs[0]:
        inputs = [with_buffers(carried[number], step) for step in steps]
        bases = [each[number][find_base(each[number], restart)] for each in graphs]
        found = compare_captures(bases, inputs, tolerance=tolerance)
        if found is not None:
            return replace(found, stage=number)
    return None


def compare_with_eager(
    graphs: ByStage,
    step: PipelineStep,
    recorded: Sequence[Mapping[int, StepInputs]],
    computed: Mapping[str, Tensor],
    *,
    tolerance: float,
    restart: str,
) -> Finding | None:
    """The first stage of this rank whose captured graph is not its eager step; tied slots have sums of several stages
    and are left out."""
    tied = {f"gradient {each.slot.name}" for each in step.tied}
    wanted = {name: value for name, value in computed.items() if name not in tied}
    for number, stages in graphs.items():
        inputs = [with_buffers(each[number], step) for each in recorded]
        wrong = compare_with_modules(stages, inputs, wanted, tolerance=tolerance, restart=restart)
        if wrong is not None:
            return replace(wrong, stage=number)
    return None


def with_buffers(inputs: StepInputs, step: PipelineStep) -> StepInputs:
    """The same inputs with the buffers of another step of the same model."""
    return replace(inputs, buffers=next(iter(step.stages.values())).source.buffers)
