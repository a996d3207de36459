"""What surrounds the graph in an update, on every rank, by the code that trains: counts, loss, norm, update, biases.

Gradients, metrics and losses come from the simulated graph; everything else is computed by the methods of `MeshStep`
and by the run's optimizer, whose collectives are emulated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from monograph.axes import Axis
from monograph.execute.base import MeshStep, sum_in_order
from monograph.execute.gradients import Gradients
from monograph.execute.pipeline.build import PipelineSource
from monograph.execute.pipeline.step import PipelineStep, find_counted, find_own_units
from monograph.graph.signature import OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.parallel.mesh import Mesh
from monograph.train.build_optimizer import build_optimizer
from monograph.train.config import TrainerConfig
from monograph.train.optimizer_config import AdamWConfig
from monograph.verify.reference import build_plain_optimizer
from monograph.verify.simulate.coordinates import Coordinates, Partition
from monograph.verify.simulate.everywhere import run_everywhere
from monograph.verify.simulate.execute import SharedValue
from monograph.verify.simulate.outcome import TOLERANCE, largest, relative
from monograph.verify.simulate.precision import in_fp64
from monograph.verify.simulate.rounds import SimulatedRound

MOST_UPDATED = 16
"""Coordinates whose update of weights is computed: the first of more. Everything else is computed for all."""


@dataclass(frozen=True)
class _Place:
    """What a step asks of its groups."""

    mesh: Mesh
    rank: int
    device: torch.device


class _RankStep(MeshStep):
    """The step of one simulated rank, between its micro-batches and the next update."""

    def __init__(self, planned: SimulatedRound, place: _Place, parameters: Mapping[str, Tensor]) -> None:
        groups: Any = place
        super().__init__(planned.source.model, planned.source.table, groups, seed=planned.source.seed)
        self.parameters = parameters

    def run(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        raise NotImplementedError("the graph computes micro-batches")

    def run_evaluation(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        raise NotImplementedError("the graph computes micro-batches")


@dataclass(frozen=True)
class UpdateDifference:
    """One number of an update, and how far it is from one device's."""

    name: str
    difference: float

    def __str__(self) -> str:
        return f"{self.name} differs by {self.difference:.1e}"

    @property
    def is_wrong(self) -> bool:
        """Whether rounding does not explain it."""
        return not self.difference <= TOLERANCE


class StageStep(_RankStep):
    """The step of one simulated rank of a pipeline: it has the parameters of its stages."""

    total_loss = PipelineStep.total_loss
    grad_norm = PipelineStep.grad_norm

    def __init__(
        self, planned: SimulatedRound, place: _Place, parameters: Mapping[str, Tensor], plan: PipelineSource
    ) -> None:
        super().__init__(planned, place, parameters)
        own = find_own_units(plan.plan, plan.schedule, place.mesh.coordinate(place.rank, Axis.PP))
        self.table, self.counted = self.whole_table.of_units(own), find_counted(self.whole_table, own)


class _RoundResults:
    """What a round of micro-batches leaves on every rank."""

    def __init__(self, graph: StepGraph, results: Sequence[SharedValue | None]) -> None:
        kinds: dict[OutputKind, dict[str, SharedValue]] = {kind: {} for kind in OutputKind}
        for spec, value in zip(graph.outputs, results, strict=True):
            if value is not None:
                kinds[spec.kind][spec.name] = value
        self.gradients, self.metrics = kinds[OutputKind.GRADIENT], kinds[OutputKind.METRIC]
        self.loss = next(iter(kinds[OutputKind.LOSS].values()))


class SimulatedUpdate:
    """An update after its rounds of micro-batches, on every rank of every stage."""

    def __init__(
        self,
        planned: SimulatedRound,
        graph: StepGraph,
        results: Sequence[Sequence[SharedValue | None]],
        config: TrainerConfig,
        plan: PipelineSource | None = None,
    ) -> None:
        self.planned, self.config, self.plan = planned, config, plan
        stage = planned.coordinates
        self.coordinates = stage if plan is None else Coordinates(replace(stage.mesh, pp=plan.schedule.ranks))
        self.stage_size = len(stage.ranks)
        self.rounds = [_RoundResults(graph, of_round) for of_round in results]

    def compare(self) -> list[UpdateDifference]:
        """Every number of the update against one device, in the order in which they are computed."""
        expected = [each.expected for each in self.planned.rounds]
        found = [self._compare_counts()]
        loss = run_everywhere(
            lambda rank: self._step(rank).total_loss(
                sum_in_order([self._on_last_stage(each.loss, rank) for each in self.rounds])
            ),
            self._spread([each.loss.part for each in self.rounds]),
            self.coordinates,
        )
        total = torch.tensor(sum(each.loss for each in expected), dtype=torch.float64)
        found.append(_difference("loss of the update", loss, total))
        norms = run_everywhere(
            lambda rank: self._step_with_gradients(rank).grad_norm(), self._gradient_part(), self.coordinates
        )
        gradients = [sum_in_order([each.gradients[name] for each in expected]) for name in expected[0].gradients]
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        found.append(_difference("gradient norm", norms, norm))
        found += self._compare_weights(norms, loss)
        return found + self._compare_metrics()

    def _step(self, rank: int, parameters: Mapping[str, Tensor] | None = None) -> _RankStep:
        """The step of a rank, by default without parameters."""
        place = _Place(self.coordinates.mesh, rank, torch.device("cpu"))
        if self.plan is None:
            return _RankStep(self.planned, place, parameters or {})
        return StageStep(self.planned, place, parameters or {}, self.plan)

    def _spread(self, parts: Sequence[Partition]) -> Partition:
        """Partitions of a stage's ranks as one of all ranks, where those of other stages hold something else."""
        joined = self.planned.coordinates.join(parts)
        if self.plan is None:
            return joined
        size = self.stage_size
        return self.coordinates.by_key([(rank // size, joined.labels[rank % size]) for rank in self.coordinates.ranks])

    def _on_last_stage(self, value: SharedValue, rank: int) -> Tensor:
        """What a rank of the last stage holds; zeros on those of other stages."""
        held = value.at(rank % self.stage_size)
        if self.plan is None or rank // self.stage_size == self.plan.schedule.stage_ranks[-1]:
            return held
        return torch.zeros_like(held)

    def _step_with_gradients(self, rank: int, *, has_weights: bool = False) -> _RankStep:
        """The step of a rank with gradients, in place of weights unless those are wanted as well."""
        shards, parameters = {}, {}
        for slot in self._step(rank).table.trained:
            shards[slot.name] = slot.take_shard(self.planned.device.parameters[slot.name], rank)
        sums = Gradients(shards)
        for each in self.rounds:
            for name in shards:
                sums.add(name, each.gradients[name].at(rank % self.stage_size).clone())
        for name, gradient in sums.taken().items():
            parameters[name] = shards[name] if has_weights else gradient.detach()
            parameters[name].grad = gradient
        return self._step(rank, parameters)

    def _gradient_part(self) -> Partition:
        return self._spread([value.part for each in self.rounds for value in each.gradients.values()])

    def _compare_counts(self) -> UpdateDifference:
        """The counts that sums are divided by, which each rank takes of its own micro-batches."""
        mesh, planned = self.coordinates.mesh, self.planned
        reads = [tuple(each.dealt[mesh.data_part(rank)] for each in planned.rounds) for rank in self.coordinates.ranks]
        cp = [mesh.coordinate(rank, Axis.CP) for rank in self.coordinates.ranks]
        part = self.coordinates.by_key(list(zip(reads, cp, strict=True)))
        counts = run_everywhere(
            lambda rank: self._step(rank).compute_scalars([planned.drawn[number] for number in reads[rank]]),
            part,
            self.coordinates,
        )
        wanted = planned.expected.scalars
        worst = max(
            (
                relative(held[name], wanted[name], largest(wanted[name].double()))
                for held in counts.items
                for name in wanted
            ),
            default=0.0,
        )
        return UpdateDifference("counts that sums are divided by", worst)

    def _compare_weights(self, norms: SharedValue, losses: SharedValue) -> list[UpdateDifference]:
        """Updated weights and moments, clipped to half the norm so that clipping shows, relative to their change."""
        lr, max_norm = self.config.optimizer.lr, norms.items[0].item() / 2
        planned, table = self.planned, self.planned.source.table
        optimizer = self.config.optimizer.for_fp32()
        if isinstance(optimizer, AdamWConfig):
            optimizer = optimizer.replace(implementation="foreach")  # torch's fused kernel counts steps in fp32 only
        weights = planned.device.parameters
        plain = {slot.name: weights[slot.name].clone().requires_grad_() for slot in table.trained}
        for slot in table.trained:
            values = [each.gradients[slot.name] for each in self.rounds]
            shards = {
                rank: sum_in_order([value.at(rank) for value in values]) for rank in self.planned.coordinates.ranks
            }
            plain[slot.name].grad = table.gather_full(slot, shards)
        decayed = frozenset(slot.name for slot in table.trained if slot.is_decayed)
        with in_fp64():
            rule = build_plain_optimizer(optimizer, plain, decayed)
            norm = norms.items[0]
            torch.nn.utils.clip_grads_with_norm_(plain.values(), max_norm, norm)
            rule.step(lr, loss=losses.items[0], grad_norm=norm)
        whole = {("weights", name): value.detach() for name, value in plain.items()} | dict(rule.state())
        worst: dict[str, float] = {}
        part = self.coordinates.join([self._gradient_part(), norms.part])
        for first in part.firsts[:MOST_UPDATED]:
            step = self._step_with_gradients(first, has_weights=True)
            with in_fp64():
                ours = build_optimizer(optimizer, step)
                ours.step(lr, loss=losses.at(first), grad_norm=norms.at(first), max_norm=max_norm)
            held = {("weights", slot.name): step.parameters[slot.name] for slot in step.table.trained} | ours.state()
            for (kind, name), shard in held.items():
                slot, moved = table[name], whole[kind, name]
                gap = relative(
                    slot.valid_part(shard, first),
                    slot.valid_part(slot.take_shard(moved, first), first),
                    largest(moved - weights[name]) if kind == "weights" else largest(moved),
                )
                label = f"update of {name}" if kind == "weights" else f"{kind} of {name}"
                worst[label] = max(worst.get(label, 0.0), gap)
        return [UpdateDifference(name, value) for name, value in worst.items()]

    def _compare_metrics(self) -> list[UpdateDifference]:
        """The metrics of the update, and what follows them, such as the experts' selection biases."""
        planned, found = self.planned, []
        part = self._spread([value.part for each in self.rounds for value in each.metrics.values()])
        model = planned.source.model
        stored = {name: value.clone() for name, value in _kept(planned, model).items()}
        before = {name: planned.device.buffers[name].clone() for name in stored}

        def finish(rank: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            step = self._step(rank)
            for name, value in _kept(planned, model).items():
                value.data = before[name].clone()
            for each in self.rounds:
                for name, held in each.metrics.items():
                    step.metrics.add(name, self._on_last_stage(held, rank))
            metrics = step.finish_batch(None)
            return metrics, {name: value.clone() for name, value in _kept(planned, model).items()}

        after = run_everywhere(finish, part, self.coordinates)
        for name, value in _kept(planned, model).items():
            value.data = stored[name]
        totals = {
            name: sum_in_order([each.expected.metrics[name] for each in planned.rounds])
            for name in planned.expected.metrics
        }
        expected = planned.device.finish(totals)
        for name, wanted in totals.items():
            gaps = [relative(metrics[name], wanted, largest(wanted)) for metrics, _ in after.items]
            found.append(UpdateDifference(f"{name} of the update", max(gaps)))
        for name, wanted in expected.items():
            scale = largest(wanted - before[name]) or 1.0
            gaps = [relative(kept[name], wanted, scale) for _, kept in after.items]
            found.append(UpdateDifference(f"update of {name}", max(gaps)))
        return found


def _kept(planned: SimulatedRound, model: Any) -> dict[str, Tensor]:
    """The buffers of the parallel model that training changes."""
    names = planned.device.kept_names
    return {name: model.get_buffer(name) for name in names}


def _difference(name: str, value: SharedValue, wanted: Tensor) -> UpdateDifference:
    return UpdateDifference(name, max(relative(item, wanted, largest(wanted)) for item in value.items))
