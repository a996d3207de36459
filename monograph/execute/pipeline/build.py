"""From a model to the step of a pipeline rank: stages -> capture -> passes -> programs, for its own stages alone."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from monograph.axes import Axis
from monograph.capture.block_repeats import find_block_repeats, find_skipped_blocks
from monograph.capture.capture import GraphKind
from monograph.capture.chunks import find_source_chunks
from monograph.capture.source import StepSource
from monograph.capture.stage import CarrySpec, find_carries
from monograph.compat.capture import fake_tensors
from monograph.errors import ConfigError
from monograph.execute.activation_checkpoint import find_runner
from monograph.execute.artifact.open import WantedGraph
from monograph.execute.base import StepSettings
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.cudagraph import CudaGraphRecorder
from monograph.execute.facts import make_facts
from monograph.execute.layer import LayerCall, compile_layers
from monograph.execute.pipeline.eager import EagerStage
from monograph.execute.pipeline.recorded import accepts
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
from monograph.models.flops import count_unit_flops
from monograph.models.model import Model, find_unit
from monograph.models.parallel_plan import matches
from monograph.parallel.groups import Groups
from monograph.parallel.param_table import ParamTable
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.stage_runner import Stage
from monograph.parallel.pipeline.stages import StagePlan, plan_stages
from monograph.passes.runner import OptimizedGraph

Carries = Mapping[str, CarrySpec]


@dataclass(frozen=True)
class StageSource:
    """What a stage is captured from, with examples of its inputs."""

    source: StepSource
    inputs: StepInputs
    carry_in: Carries
    carry_out: Carries
    programs: int = 1
    """How many programs the graph becomes; see Facts."""

    def facts(self, groups: Groups, settings: StepSettings) -> Facts:
        """What passes may know about this graph: some stages have none of the modules that run chunk by chunk, or none
        of those that `activation_checkpoint.save` selects."""
        found = make_facts(self.source.table, groups, settings)
        stage, save = self.source.stage, found.activations.save
        if stage is not None:
            save = find_own_selectors(save, self.source.model, stage.units)
        return replace(
            found,
            chunking=found.chunking if find_source_chunks(self.source) else None,
            activations=replace(found.activations, save=save),
            programs=self.programs,
        )

    def inputs_of(self, kind: GraphKind) -> StepInputs:
        """Examples of the inputs of one kind of graph: of an evaluation there are no gradients."""
        return self.inputs if kind == "step" else replace(self.inputs, carry_gradients={})


def find_own_selectors(save: Sequence[str], model: Model, units: Collection[str]) -> tuple[str, ...]:
    """The selectors, each PATH::OP, of modules in these units; one that selects no module of the model stays."""
    paths = [path for path, _ in model.named_modules()]
    own = []
    for selector in save:
        pattern = selector.partition("::")[0]
        selected = [path for path in paths if matches(pattern, path)]
        if not selected or any(find_unit(path, units) for path in selected):
            own.append(selector)
    return tuple(own)


@dataclass(frozen=True)
class PipelineSource:
    """The whole model, and how a pipeline divides it."""

    whole: StepSource
    """Without parameters: a rank has those of its stages."""
    inputs: StepInputs
    """Examples of the batch's."""
    plan: StagePlan
    schedule: Schedule
    settings: StepSettings


def plan_model_stages(model: Model, count: int, firsts: tuple[str, ...], *, seq_len: int) -> StagePlan:
    """The stages of a model that was not parallelized yet: automatic ones are balanced by useful operations."""
    units = model.unit_modules()
    costs = [found.causal_attention for found in count_unit_flops(units, seq_len).values()]
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
    *,
    is_split: bool,
) -> dict[int, StageSource]:
    """The sources of some stages; `whole` has the parameters of all of them, and the table of the whole model.

    With `is_split` backward runs as two programs, else as one.
    """
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
            given = {name: spec.make(device) for name, spec in before.items()}
            back = {name: spec.make(device) for name, spec in find_differentiable(after).items()}
        example = source.inputs(inputs.batch, inputs.scalars, given, back)
        found[number] = StageSource(source, example, before, after, programs=3 if is_split else 2)
    return found


def find_differentiable(carries: Carries) -> dict[str, CarrySpec]:
    """The values that have a gradient."""
    return {name: spec for name, spec in carries.items() if spec.dtype.is_floating_point}


def make_sources(
    pipeline: PipelineSource, groups: Groups, numbers: tuple[int, ...]
) -> tuple[dict[str, nn.Parameter], dict[int, StageSource]]:
    """The shards of some stages' parameters, and the stages to capture."""
    whole, plan = pipeline.whole, pipeline.plan
    own = whole.table.of_units({unit for number in numbers for unit in plan.stages[number]})
    parameters = make_shards(own, groups, pipeline.settings)
    carries = find_boundary_carries(whole, pipeline.inputs, pipeline.settings.dtype)
    with_shards = replace(whole, parameters=parameters)
    is_split = pipeline.schedule.is_split
    return parameters, make_stage_sources(with_shards, pipeline.inputs, plan, numbers, carries, is_split=is_split)


def start_pipeline_step(pipeline: PipelineSource, groups: Groups) -> tuple[PipelineStep, dict[int, StageSource]]:
    """The step of this rank, and what its stages are captured from; `add_stages` completes it."""
    table, plan, schedule = pipeline.whole.table, pipeline.plan, pipeline.schedule
    check_trained(table, plan, schedule)
    numbers = schedule.stages_of(groups.mesh.coordinate(groups.rank, Axis.PP))
    parameters, sources = make_sources(pipeline, groups, numbers)
    cache, tied = CastWeightCache(parameters), find_tied(table, plan)
    model, seed = pipeline.whole.model, pipeline.settings.seed
    return PipelineStep(model, table, groups, plan, schedule, parameters, cache, tied, seed=seed), sources


def find_wanted(
    sources: Mapping[int, StageSource], kinds: Sequence[GraphKind], groups: Groups, settings: StepSettings
) -> list[WantedGraph]:
    """The graphs that this rank's stages need, stage by stage."""
    facts = {number: found.facts(groups, settings) for number, found in sources.items()}
    return [
        WantedGraph(kind, facts[number], found.inputs_of(kind), number)
        for number, found in sources.items()
        for kind in kinds
    ]


def group_by_stage(
    wanted: Sequence[WantedGraph], graphs: Sequence[OptimizedGraph]
) -> dict[int, dict[GraphKind, OptimizedGraph]]:
    """The graphs that were wanted, by stage and kind; none where stages run op by op."""
    found: dict[int, dict[GraphKind, OptimizedGraph]] = {}
    for each, graph in zip(wanted, graphs, strict=False):
        assert each.stage is not None
        found.setdefault(each.stage, {})[each.kind] = graph
    return found


def add_stages(
    step: PipelineStep,
    sources: Mapping[int, StageSource],
    graphs: Mapping[int, Mapping[GraphKind, OptimizedGraph]],
    settings: StepSettings,
    groups: Groups,
    recorder: CudaGraphRecorder | None,
) -> None:
    """Build the programs of this rank's stages; without graphs they run op by op, or with compiled blocks."""
    schedule = step.schedule
    layers: LayerCall | None = None
    if settings.compile.mode == "layer":
        step.backend, layers = compile_layers(step.model, settings.compile, find_runner(settings.activations.mode))
    for number, found in sources.items():
        if graphs:
            step.stages[number] = build_stage(
                step, found, graphs[number], step.weight_cache, is_split=schedule.is_split
            )
        else:
            step.stages[number] = build_eager_stage(step, found, settings, layers)
    if not graphs:
        return
    check_same_on_peers(groups, step)
    captured = [found.graph for found in step.captured]
    if recorder is not None and accepts(recorder, captured, schedule, step.pipeline_rank):
        step.recorder = recorder


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
    keeps_dtype = "narrow_gradients" in graphs["step"].ran
    gradients = StageGradients(parameters, step.tied, reduce_dtype=found.source.reduce_dtype, keeps_dtype=keeps_dtype)
    assert found.source.stage is not None
    outputs = StageOutputs(step, gradients, has_loss=found.source.stage.is_last)
    program = StageProgram(graphs["step"].graph, found.inputs, outputs.take, cache, is_split=is_split)
    gradients_in = find_differentiable(found.carry_out)
    training = StageInterface(program.run, program.fill, found.carry_in, gradients_in)
    evaluation = evaluating = None
    if "evaluation" in graphs:
        graph = graphs["evaluation"].graph
        inputs = found.inputs_of("evaluation")
        evaluation = StageProgram(graph, inputs, outputs.take_loss, cache, is_split=False, is_training=False)
        evaluating = StageInterface(evaluation.run, evaluation.fill, found.carry_in, {})
    return PipelineStage(found.source, graphs, program, evaluation, gradients, training, evaluating)


def build_eager_stage(
    step: PipelineStep, found: StageSource, settings: StepSettings, layers: LayerCall | None
) -> PipelineStage:
    """A stage that runs op by op, or with compiled blocks."""
    gradients = StageGradients(
        found.source.parameters, step.tied, reduce_dtype=found.source.reduce_dtype, keeps_dtype=False
    )
    assert found.source.stage is not None
    outputs = StageOutputs(step, gradients, has_loss=found.source.stage.is_last)
    stage = EagerStage(found.source, settings, outputs.take, layers)
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
