"""Other runs through the stages of a pipeline than an update: forwards alone, and one micro-batch that is observed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from monograph.axes import Group
from monograph.execute.pipeline.runtime import StageInterface
from monograph.execute.pipeline.stage_program import HANDED_ON, LiveValues
from monograph.execute.pipeline.tied import StageGradients
from monograph.graph.signature import InputKind, OutputKind
from monograph.parallel.observed_group import GRADIENTS, SendDigests
from monograph.parallel.pipeline.actions import Action, ActionKind, backward, forward
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.transfers import with_transfers


def build_forward_schedule(schedule: Schedule, micro_batches: int) -> Schedule:
    """The forwards alone, stage by stage: what an evaluation runs."""
    rows = tuple(
        tuple(forward(stage, number) for stage in schedule.stages_of(rank) for number in range(micro_batches))
        for rank in range(schedule.ranks)
    )
    return with_transfers(Schedule("evaluation", schedule.stage_ranks, micro_batches, rows))


def noted(
    number: int, training: StageInterface, gradients: StageGradients, stages: int, digests: SendDigests
) -> StageInterface:
    """A stage that tells `digests` which part of the step it begins, and then what it hands on and its gradients."""

    def run(action: Action, live: LiveValues) -> None:
        is_forward = action.kind is ActionKind.FORWARD
        digests.part = number if is_forward else 2 * stages - 1 - number
        training.run(action, live)
        kind = OutputKind.CARRY if is_forward else OutputKind.CARRY_GRADIENT
        if found := [value for key, value in sorted(live.items()) if key.startswith(HANDED_ON[kind])]:
            digests.note(Group.PP.value, kind.value, found)
        if not is_forward and (sums := gradients.list_all()):
            digests.note("", GRADIENTS, sums)

    return replace(training, run=run)


@dataclass
class CarriedInputs:
    """What a stage got from its neighbours."""

    carry: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)


def recorded(training: StageInterface, carried: CarriedInputs) -> StageInterface:
    """A stage that stores copies of what it gets from its neighbours."""
    targets = {InputKind.CARRY: carried.carry, InputKind.CARRY_GRADIENT: carried.gradients}

    def fill(live: LiveValues, kind: InputKind, values: Mapping[str, Tensor]) -> None:
        if kind in targets:
            targets[kind].update({name: value.clone() for name, value in values.items()})
        training.fill(live, kind, values)

    return replace(training, fill=fill)


def build_single_schedule(schedule: Schedule) -> Schedule:
    """One micro-batch through the same stages: forwards in order, then whole backwards, one stage after the other."""
    rows = tuple(
        (
            *(forward(stage, 0) for stage in schedule.stages_of(rank)),
            *(backward(stage, 0) for stage in reversed(schedule.stages_of(rank))),
        )
        for rank in range(schedule.ranks)
    )
    return with_transfers(Schedule("single", schedule.stage_ranks, 1, rows))
