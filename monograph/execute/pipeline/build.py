"""From a model to the step of a pipeline rank: stages -> capture -> passes -> programs, for its own stages alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from monograph.axes import Axis
from monograph.capture.block_repeats import find_block_repeats, find_skipped_blocks
from monograph.capture.capture import GraphKind
from monograph.capture.source import StepSource
from monograph.capture.stage import CarrySpec, find_carries
from monograph.compat.capture import fake_tensors
from monograph.errors import ConfigError
from monograph.execute.base import StepSettings
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.facts import make_facts
from monograph.execute.pipeline.eager import EagerStage
from monograph.execute.pipeline.runtime import StageInterface
from monograph.execute.pipeline.stage_program import StageProgram
from monograph.execute.pipeline.step import PipelineStage, PipelineStep, StageOutputs
from monograph.execute.pipeline.tied import StageGradients, find_tied
from monograph.execute.sharded import make_shards
from monograph.graph.facts import Facts
from monograph.graph.inputs import StepInputs
from monograph.graph.query import value_of
from monograph.graph.signature import OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.log import get_log
from monograph.models.flops import count_model_flops
from monograph.models.model import Model
from monograph.parallel.groups import Groups
from monograph.parallel.param_table import ParamTable
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.stage_runner import Stage
from monograph.parallel.pipeline.stages import StagePlan, plan_stages
from monograph.passes.runner import OptimizedGraph

log = get_log("pipeline")
Carries = Mapping[str, CarrySpec]
Optimize = Callable[[StepSource, StepInputs, Facts, GraphKind], OptimizedGraph]


@dataclass(frozen=True)
class StageSource:
    """What a stage is captured from, with examples of its inputs."""

    source: StepSource
    inputs: StepInputs
    carry_in: Carries
    carry_out: Carries


def plan_model_stages(model: Model, count: int, firsts: tuple[str, ...], *, seq_len: int) -> StagePlan:
    """The stages of a model that was not parallelized yet: automatic ones are balanced by useful operations."""
    units = model.unit_modules()
    costs = [count_model_flops(unit, seq_len).causal_attention for unit in units.values()]
    return plan_stages(list(units), costs, count, firsts)


def find_boundary_carries(source: StepSource, inputs: StepInputs, dtype: torch.dtype) -> dict[str, Carries]:
    """What every unit of the whole model hands on; `inputs` are the batch's and need no parameters."""
    device = source.coords.device
    with fake_tensors():
        state = {slot.name: torch.empty(slot.local_shape, dtype=dtype, device=device) for slot in source.table}
    repeats = [] if source.overlap.is_on else find_block_repeats(source.model, source.table)
    found = find_carries(
        source.model,
        source.table,
        replace(inputs, state=state),
        skipped=find_skipped_blocks(source.model, repeats),
        compute_dtype=source.compute_dtype,
        reduce_dtype=source.reduce_dtype,
    )
    return dict(found)


def make_stage_sources(
    whole: StepSource,
    inputs: StepInputs,
    plan: StagePlan,
    numbers: tuple[int, ...],
    carries: Mapping[str, Carries],
) -> dict[int, StageSource]:
    """The sources of some stages; `whole` has the parameters of all of them, and the table of the whole model."""
    device = whole.coords.device
    found = {}
    for number in numbers:
        stage = Stage(number, plan.count, plan.stages[number])
        table = whole.table.of_units(stage.units)
        source = replace(
            whole,
            table=table,
            parameters={slot.name: whole.parameters[slot.name] for slot in table},
            stage=stage,
        )
        before = {} if stage.is_first else carries[plan.stages[number - 1][-1]]
        after = {} if stage.is_last else carries[stage.units[-1]]
        with fake_tensors():
            given = {name: _make(spec, device) for name, spec in before.items()}
            back = {name: _make(spec, device) for name, spec in find_differentiable(after).items()}
        example = source.inputs(inputs.batch, inputs.scalars, given, back)
        found[number] = StageSource(source, example, before, after)
    return found


def find_differentiable(carries: Carries) -> dict[str, CarrySpec]:
    """The values that have a gradient."""
    return {name: spec for name, spec in carries.items() if spec.dtype.is_floating_point}


def _make(spec: CarrySpec, device: torch.device) -> Tensor:
    """What arrives: dense, whatever it was where it was made."""
    return torch.empty(spec.shape, dtype=spec.dtype, device=device)


def build_pipeline_step(
    whole: StepSource,
    inputs: StepInputs,
    plan: StagePlan,
    schedule: Schedule,
    groups: Groups,
    settings: StepSettings,
    optimize: Optimize | None,
    *,
    kinds: tuple[GraphKind, ...],
) -> PipelineStep:
    """The step of this rank; `whole` has no parameters yet. Without `optimize` its stages run op by op."""
    check_trained(whole.table, plan, schedule)
    rank = groups.mesh.coordinate(groups.rank, Axis.PP)
    numbers = schedule.stages_of(rank)
    own = whole.table.of_units({unit for number in numbers for unit in plan.stages[number]})
    parameters = make_shards(own, groups, settings)
    cache = CastWeightCache(parameters)
    tied = find_tied(whole.table, plan)
    step = PipelineStep(whole.model, whole.table, groups, plan, schedule, parameters, cache, tied, seed=settings.seed)
    carries = find_boundary_carries(whole, inputs, settings.dtype)
    sources = make_stage_sources(replace(whole, parameters=parameters), inputs, plan, numbers, carries)
    for number, found in sources.items():
        if optimize is None:
            step.stages[number] = build_eager_stage(step, found, settings)
            continue
        facts = make_facts(found.source.table, groups, settings)
        graphs = {kind: optimize(found.source, _for(kind, found.inputs), facts, kind) for kind in kinds}
        step.stages[number] = build_stage(step, found, graphs, cache, is_split=schedule.is_split)
    if optimize is not None:
        check_same_on_peers(groups, step)
    return step


def check_trained(table: ParamTable, plan: StagePlan, schedule: Schedule) -> None:
    """Every rank has something to train; all ranks find the same one that has not."""
    for rank in range(schedule.ranks):
        units = [unit for number in schedule.stages_of(rank) for unit in plan.stages[number]]
        if not table.of_units(units).trained:
            raise ConfigError(
                f"pipeline rank {rank} has no parameter to train: all of {units[0]} .. {units[-1]} are frozen",
                why="every rank updates its own parameters",
                do="give it other units (parallelism.pipeline_stages), or use fewer pipeline ranks",
            )


def _for(kind: GraphKind, inputs: StepInputs) -> StepInputs:
    return inputs if kind == "step" else replace(inputs, carry_gradients={})


def build_stage(
    step: PipelineStep,
    found: StageSource,
    graphs: Mapping[GraphKind, OptimizedGraph],
    cache: CastWeightCache,
    *,
    is_split: bool,
) -> PipelineStage:
    """The programs of one stage, and how the runtime reaches them."""
    parameters = found.source.parameters
    gradients = StageGradients(parameters, step.tied, keeps_dtype="narrow_gradients" in graphs["step"].ran)
    assert found.source.stage is not None
    outputs = StageOutputs(step, gradients, has_loss=found.source.stage.is_last)
    program = StageProgram(graphs["step"].graph, found.inputs, outputs.take, cache, is_split=is_split)
    gradients_in = find_differentiable(found.carry_out)
    training = StageInterface(program.run, program.fill, found.carry_in, gradients_in)
    evaluation = evaluating = None
    if "evaluation" in graphs:
        graph = graphs["evaluation"].graph
        inputs = _for("evaluation", found.inputs)
        evaluation = StageProgram(graph, inputs, outputs.take_loss, cache, is_split=False, is_training=False)
        evaluating = StageInterface(evaluation.run, evaluation.fill, found.carry_in, {})
    return PipelineStage(found.source, graphs, program, evaluation, gradients, training, evaluating)


def build_eager_stage(step: PipelineStep, found: StageSource, settings: StepSettings) -> PipelineStage:
    """A stage that runs op by op."""
    gradients = StageGradients(found.source.parameters, step.tied, keeps_dtype=False)
    assert found.source.stage is not None
    outputs = StageOutputs(step, gradients, has_loss=found.source.stage.is_last)
    stage = EagerStage(found.source, settings, outputs.take)
    gradients_in = find_differentiable(found.carry_out)
    training = StageInterface(stage.run, stage.fill, found.carry_in, gradients_in)
    evaluating = StageInterface(stage.evaluate, stage.fill, found.carry_in, {})
    return PipelineStage(found.source, {}, stage, stage, gradients, training, evaluating)


def check_same_on_peers(groups: Groups, step: PipelineStep) -> None:
    """Ranks with the same stages run the same graphs; and all stages have the same metrics, which are summed over them.

    Every rank asks once, whatever the number of its stages.
    """
    graphs = [found.graph for stage in step.stages.values() for found in stage.graphs.values()]
    digests = " ".join(graph.digest() for graph in graphs)
    groups.check_same_on_stage("the graphs of the stages", digests, text=lambda: "".join(g.text() for g in graphs))
    metrics = {describe_metrics(stage.graphs["step"].graph) for stage in step.stages.values()}
    groups.check_same("the metrics of the stages", " and ".join(sorted(metrics)))


def describe_metrics(graph: StepGraph) -> str:
    """The metrics of a stage with their forms."""
    pairs = zip(graph.outputs, graph.results, strict=True)
    metrics = [
        (spec.name, value_of(node)) for spec, node in pairs if spec.kind is OutputKind.METRIC and node is not None
    ]
    return ", ".join(f"{name} {value.dtype}{list(value.shape)}" for name, value in metrics)
