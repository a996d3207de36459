"""The step of a pipeline rank: runs its part of a schedule, and what surrounds an update over all stages."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from monograph.axes import Axis, Group
from monograph.capture.capture import GraphKind
from monograph.capture.source import StepSource
from monograph.errors import ConfigError
from monograph.execute.artifact.load import Artifact, failures_explained
from monograph.execute.base import MeshStep, sum_in_order
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.cudagraph import CudaGraphRecorder
from monograph.execute.graph_step import find_graph_groups
from monograph.execute.pipeline.eager import EagerStage
from monograph.execute.pipeline.links import Links
from monograph.execute.pipeline.recorded import RecordedUpdate, find_computed
from monograph.execute.pipeline.run_times import RunTimes
from monograph.execute.pipeline.runtime import PipelineRun, StageInterface
from monograph.execute.pipeline.single_runs import (
    CarriedInputs,
    build_forward_schedule,
    build_single_schedule,
    noted,
    recorded,
)
from monograph.execute.pipeline.stage_program import StageProgram
from monograph.execute.pipeline.tied import StageGradients, TiedSlot, add_tied, find_tied_links
from monograph.graph.inputs import StepInputs
from monograph.graph.signature import OutputKind, OutputSpec
from monograph.models.model import Model
from monograph.parallel.groups import Groups
from monograph.parallel.mesh_reductions import (
    REDUCTIONS,
    all_reduce_over_data,
    all_reduce_over_pipeline,
    compute_pipeline_grad_norm,
)
from monograph.parallel.observed_group import SendDigests
from monograph.parallel.param_table import ParamTable
from monograph.parallel.pipeline.releases import find_releases
from monograph.parallel.pipeline.schedule import BUBBLE, Schedule
from monograph.parallel.pipeline.stages import StagePlan
from monograph.parallel.pipeline.transfers import find_links
from monograph.passes.runner import OptimizedGraph


class StageOutputs:
    """Takes the outputs of a rank's programs: losses, metrics, gradients."""

    def __init__(self, step: "PipelineStep", gradients: StageGradients, *, has_loss: bool) -> None:
        self.step, self.gradients, self.has_loss = step, gradients, has_loss

    def take(self, spec: OutputSpec, value: Tensor) -> None:
        """One output, the moment it is computed."""
        if spec.kind is OutputKind.METRIC:
            self.step.metrics.add(spec.name, value)
        elif spec.kind is OutputKind.GRADIENT:
            self.gradients.add(spec.name, value)
        else:
            self.take_loss(spec, value)

    def take_loss(self, spec: OutputSpec, value: Tensor) -> None:
        """The loss alone: all that an evaluation yields, and on the last stage only."""
        if spec.kind is OutputKind.LOSS and self.has_loss:
            self.step.losses.append(value.clone())


@dataclass(frozen=True)
class PipelineStage:
    """A stage on this rank: what it was captured from, its graphs and programs."""

    source: StepSource
    graphs: Mapping[GraphKind, OptimizedGraph]
    """None where the stage runs op by op."""
    program: StageProgram | EagerStage
    evaluation: StageProgram | EagerStage | None
    gradients: StageGradients
    training: StageInterface
    evaluating: StageInterface | None


@dataclass(frozen=True)
class UpdateResults:
    """What the actions of an update leave on a rank, besides metrics."""

    losses: Sequence[Tensor]
    gradients: Mapping[int, Mapping[str, Tensor]]
    """By stage and name."""


def find_own_units(plan: StagePlan, schedule: Schedule, pipeline_rank: int) -> set[str]:
    """The units of a rank's stages."""
    return {unit for stage in schedule.stages_of(pipeline_rank) for unit in plan.stages[stage]}


def find_counted(table: ParamTable, own_units: Collection[str]) -> set[str]:
    """The slots whose gradients a rank counts in the norm: a tied one is counted by its first stage."""
    return {slot.name for slot in table if slot.unit in own_units}


class PipelineStep(MeshStep):
    """Runs the stages of this rank: the programs of captured graphs, or op by op."""

    weight_cache: CastWeightCache

    def __init__(
        self,
        model: Model,
        table: ParamTable,
        groups: Groups,
        plan: StagePlan,
        schedule: Schedule,
        parameters: Mapping[str, Tensor],
        cache: CastWeightCache,
        tied: Sequence[TiedSlot],
        *,
        seed: int,
    ) -> None:
        super().__init__(model, table, groups, seed=seed)
        self.pipeline_rank = groups.mesh.coordinate(groups.rank, Axis.PP)
        own_units = find_own_units(plan, schedule, self.pipeline_rank)
        self.table, self.counted = table.of_units(own_units), find_counted(table, own_units)
        self.plan, self.schedule, self.parameters, self.weight_cache = plan, schedule, parameters, cache
        self.tied = tied
        self.links, self.releases = Links(groups), find_releases(schedule, self.pipeline_rank)
        if groups.has_peers:
            groups.barrier()  # a rank that is still building its model is not late for its links
            self.links.connect(find_links(schedule) | find_tied_links(tied, schedule.stage_ranks))
        self.stages: dict[int, PipelineStage] = {}
        self.losses: list[Tensor] = []
        self.times: RunTimes | None = None
        self.known_times: RunTimes | None = None
        """Those of the last update that the device has finished."""
        self.artifact: Artifact | None = None
        self.recorder: CudaGraphRecorder | None = None
        """What records this rank's stages; None where they run op by op."""
        self.recorded: RecordedUpdate | None = None
        self.recorded_results = UpdateResults((), {})

    @property
    def captured(self) -> list[OptimizedGraph]:
        """The captured steps of this rank's stages."""
        return [stage.graphs["step"] for stage in self.stages.values() if stage.graphs]

    @property
    def ran_passes(self) -> Sequence[str]:
        """Names of the passes that ran on any stage of this rank."""
        return list(dict.fromkeys(name for found in self.captured for name in found.ran))

    @property
    def compiled_graphs(self) -> int | None:
        """Parts that a compiler was given, on this rank."""
        if self.backend is not None:
            return self.backend.graphs
        return sum(found.graph.compiled for found in self.captured) or None

    def accumulate(self, batches: Sequence[Mapping[str, Tensor]], scalars: Mapping[str, Tensor]) -> Tensor:
        if len(batches) != self.schedule.micro_batches:
            raise ConfigError(
                f"an update of {len(batches)} micro-batches is given to a schedule for {self.schedule.micro_batches}",
                why="a schedule lists all actions of an update",
                do="keep training.global_batch_size as it was planned",
            )
        return self.train_on([self.prepare(batch) for batch in batches], scalars)

    def evaluate_all(self, batches: Sequence[Mapping[str, Tensor]], scalars: Mapping[str, Tensor]) -> Tensor:
        return self.evaluate_on([self.prepare(batch) for batch in batches], scalars)

    def run(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        return self.train_on([inputs], scalars)

    def run_evaluation(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        return self.evaluate_on([inputs], scalars)

    def train_on(self, batches: Sequence[Mapping[str, Tensor]], scalars: Mapping[str, Tensor]) -> Tensor:
        """Add the gradients of prepared micro-batches; the loss, where the last stage is."""
        self.weight_cache.refresh()
        self.losses = []
        is_first = all(stage.gradients.is_empty for stage in self.stages.values())
        with failures_explained(self.artifact):
            if self.recorder is None or not is_first:
                self.run_actions(batches, scalars)
            elif self.times is None:  # the first update gets libraries and communicators ready
                self.recorder.warm_up(lambda: self.run_actions(batches, scalars))
            else:
                self.replay_actions(batches, scalars)
        self.exchange_tied()
        return self.take_loss()

    def accumulate_one(
        self, batch: Mapping[str, Tensor], scalars: Mapping[str, Tensor], digests: SendDigests
    ) -> Tensor:
        """One stage after the other runs; what each hands on and its gradients are noted among the digests."""
        stages = {
            number: noted(number, stage.training, stage.gradients, self.schedule.stages, digests)
            for number, stage in self.stages.items()
        }
        self.run_single(self.prepare(batch), scalars, stages)
        digests.part = 2 * self.schedule.stages
        self.exchange_tied()
        return self.take_loss()

    def record_inputs(self, batch: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> dict[int, StepInputs]:
        """What this rank's stages are run on for a micro-batch, carry and gradients included; nothing else is left."""
        carried = {number: CarriedInputs() for number in self.stages}
        stages = {number: recorded(stage.training, carried[number]) for number, stage in self.stages.items()}
        prepared = self.prepare(batch)
        self.run_single(prepared, scalars, stages)
        self.exchange_tied()
        self.take_loss()
        self.discard()
        return {
            number: stage.source.inputs(prepared, scalars, carried[number].carry, carried[number].gradients)
            for number, stage in self.stages.items()
        }

    def run_single(
        self, batch: Mapping[str, Tensor], scalars: Mapping[str, Tensor], stages: Mapping[int, StageInterface]
    ) -> None:
        """Run a prepared micro-batch through these stages, one after the other."""
        self.weight_cache.refresh()
        self.losses = []
        schedule = build_single_schedule(self.schedule)
        with failures_explained(self.artifact):
            PipelineRun(schedule, self.pipeline_rank, stages, self.links, [batch], scalars).run()

    def describe_part(self, part: int) -> str:
        stages = self.schedule.stages
        if part >= 2 * stages:
            return "the sums of tied parameters"
        return f"the forward of stage {part}" if part < stages else f"the backward of stage {2 * stages - 1 - part}"

    def exchange_tied(self) -> None:
        """Add up the gradients of tied slots over the stages that have them."""
        parts = {number: stage.gradients.apart for number, stage in self.stages.items()}
        add_tied(self.tied, parts, self.schedule.stage_ranks, self.links)

    @contextmanager
    def op_by_op(self) -> Iterator[None]:
        recorder, self.recorder = self.recorder, None
        try:
            yield
        finally:
            self.recorder = recorder

    def find_missing_memory(self) -> int:
        if self.recorder is None or self.recorded is None:
            return 0
        return self.recorder.find_missing_memory()

    def run_actions(self, batches: Sequence[Mapping[str, Tensor]], scalars: Mapping[str, Tensor]) -> None:
        """Run an update op by op."""
        stages = {number: stage.training for number, stage in self.stages.items()}
        given = (stages, self.links, batches, scalars, self.releases)
        self.times = PipelineRun(self.schedule, self.pipeline_rank, *given).run()

    def replay_actions(self, batches: Sequence[Mapping[str, Tensor]], scalars: Mapping[str, Tensor]) -> None:
        """Run an update as CUDA graphs, which are recorded before the first one."""
        assert self.recorder is not None
        if self.recorded is None:
            stages = {number: stage.training for number, stage in self.stages.items()}
            self.recorded = RecordedUpdate(self.recorder, self.device, stages, batches, scalars, self.releases)
            self.recorded.record(find_computed(self.schedule, self.pipeline_rank))
            self.recorded_results = self.take_results()
        self.recorded.fill(batches, scalars)
        given = (self.recorded.stages, self.links, batches, scalars, self.releases)
        self.times = PipelineRun(self.schedule, self.pipeline_rank, *given).run()
        self.losses = list(self.recorded_results.losses)
        for number, stage in self.stages.items():
            stage.gradients.restore_all(self.recorded_results.gradients[number])

    def take_results(self) -> UpdateResults:
        """Where an update leaves its losses and gradients; the next one begins without any."""
        found = UpdateResults(
            self.losses, {number: stage.gradients.take_all() for number, stage in self.stages.items()}
        )
        self.losses = []
        return found

    @torch.no_grad()
    def evaluate_on(self, batches: Sequence[Mapping[str, Tensor]], scalars: Mapping[str, Tensor]) -> Tensor:
        """The loss of prepared micro-batches, where the last stage is."""
        stages = {number: stage.evaluating for number, stage in self.stages.items() if stage.evaluating is not None}
        if len(stages) != len(self.stages):
            raise ConfigError(
                "validator.interval is 0, so no evaluation was captured",
                why="graph mode captures it with the step, before training begins",
                do="--validator.interval 100",
            )
        self.weight_cache.refresh()
        self.losses = []
        size = self.schedule.micro_batches
        with failures_explained(self.artifact):
            for first in range(0, len(batches), size):  # what a round sends is held until its end
                chosen = batches[first : first + size]
                schedule = build_forward_schedule(self.schedule, len(chosen))
                PipelineRun(schedule, self.pipeline_rank, stages, self.links, chosen, scalars).run()
        return self.take_loss()

    def take_loss(self) -> Tensor:
        """The sum of the last stage's losses, the first micro-batch first; 0 on ranks without that stage."""
        losses, self.losses = self.losses, []
        return sum_in_order(losses) if losses else torch.zeros((), device=self.device)

    def total_loss(self, share: Tensor) -> Tensor:
        """The loss of the whole update, on every rank."""
        return all_reduce_over_data(all_reduce_over_pipeline(share))

    def grad_norm(self) -> Tensor:
        """The 2-norm of the whole gradient, every element of every stage counted once."""
        gradients = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in self.trained.items()}
        return compute_pipeline_grad_norm(self.whole_table, self.counted, gradients)

    @torch.no_grad()
    def finish_batch(self, refusal: Tensor | None) -> dict[str, Tensor]:
        """The metrics of the global batch, and the measured bubble of every pipeline rank: of this update on a CPU, on
        a GPU of the last one that it has finished."""
        metrics = super().finish_batch(refusal)
        if self.times is not None and self.times.is_known:
            self.known_times = self.times
        bubbles = torch.zeros(self.schedule.ranks, device=self.device)
        if self.known_times is not None:
            bubbles[self.pipeline_rank] = self.known_times.bubble
        return metrics | {BUBBLE: all_reduce_over_pipeline(bubbles)}

    def find_groups(self) -> set[Group]:
        captured = find_graph_groups(found.graph for found in self.captured)
        return {*REDUCTIONS, *captured} if captured else super().find_groups()

    def close(self) -> None:
        """Release what was captured, while the groups it communicates over still exist."""
        if self.recorder is not None:
            self.recorder.close()
        self.recorder = self.recorded = None
        self.recorded_results = UpdateResults((), {})
        for stage in self.stages.values():
            for program in (stage.program, stage.evaluation):
                if program is not None:
                    program.close()
        self.stages = {}
        if self.artifact is not None:
            self.artifact.close()
