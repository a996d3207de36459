"""An update of a pipeline rank as CUDA graphs: one for every action of its schedule.

All are recorded before the first is replayed, in the order of the schedule and in one memory pool. Replays keep that
order, so memory that one action frees serves later ones, as when the update runs op by op. Recording computes
nothing and sends nothing: between replays, values that arrive are copied to where a recording reads them, and what is
handed on stays in a slot, which serves another action once the schedule says that the value has been read.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from monograph.errors import ConfigError
from monograph.execute.cudagraph import CudaGraphRecorder
from monograph.execute.pipeline.links import Specs
from monograph.execute.pipeline.runtime import StageInterface
from monograph.execute.pipeline.stage_program import HANDED_ON, LiveValues, name_input
from monograph.graph.signature import InputKind
from monograph.graph.step_graph import StepGraph
from monograph.log import get_log
from monograph.parallel.pipeline.actions import Action, ActionKind
from monograph.parallel.pipeline.releases import Releases
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.transfers import GRADIENT_MAKERS

log = get_log("pipeline")
MOST_RECORDINGS = 1024
"""Of one rank. Each takes some megabytes of a GPU's memory, besides what its values take."""
ENDS = (ActionKind.BACKWARD, ActionKind.WEIGHT_GRAD)
"""Actions after which a stage has nothing left of a micro-batch."""


def find_computed(schedule: Schedule, rank: int) -> list[Action]:
    """What a rank computes in an update, in order."""
    return [part for action in schedule.actions[rank] if not action.is_transfer for part in action.parts]


def accepts(recorder: CudaGraphRecorder, graphs: Sequence[StepGraph], schedule: Schedule, rank: int) -> bool:
    """Whether all stages of a rank can be recorded; where that is required, an error says why they cannot."""
    count = len(find_computed(schedule, rank))
    if count > MOST_RECORDINGS and recorder.is_required:
        raise ConfigError(
            f"compile.cuda_graph is require, and pipeline rank {rank} runs {count} actions in an update",
            why=f"every action is recorded by itself, and at most {MOST_RECORDINGS} are",
            do="use fewer micro-batches or virtual stages; or --compile.cuda_graph auto",
        )
    if count > MOST_RECORDINGS:
        log.info(
            "no CUDA graphs are used: an update has %d actions, and at most %d are recorded", count, MOST_RECORDINGS
        )
    return count <= MOST_RECORDINGS and all(recorder.accepts(graph) for graph in graphs)


@dataclass(frozen=True)
class RecordedAction:
    """One recording, and where it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Mapping[str, Tensor]
    """By key among live values: filled before every replay."""
    outputs: Mapping[str, Tensor]
    """What is handed on, by key."""


class Slots:
    """Buffers for what actions hand on: as many of a form as are in use at once."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = defaultdict(list)
        self._taken: dict[Action, list[Tensor]] = defaultdict(list)

    def take(self, handed: Action, value: Tensor) -> Tensor:
        """Return a buffer for this value until `give_back`."""
        free = self._free[value.shape, value.dtype]
        slot = free.pop() if free else torch.empty(value.shape, dtype=value.dtype, device=value.device)
        self._taken[handed].append(slot)
        return slot

    def give_back(self, handed: Action) -> None:
        """Let the buffers of what has been read serve others."""
        for slot in self._taken.pop(handed, []):
            self._free[slot.shape, slot.dtype].append(slot)


class RecordedUpdate:
    """The recordings of an update; `stages` runs them in place of programs."""

    def __init__(
        self,
        recorder: CudaGraphRecorder,
        device: torch.device,
        own: Mapping[int, StageInterface],
        batches: Sequence[Mapping[str, Tensor]],
        scalars: Mapping[str, Tensor],
        releases: Releases,
    ) -> None:
        self.recorder, self.device, self.own, self.releases = recorder, device, own, releases
        self.pool = recorder.new_pool()
        self.batches = [copy_all(batch) for batch in batches]
        self.scalars = copy_all(scalars)
        self.actions: dict[Action, RecordedAction] = {}
        self.slots = Slots()
        self.arrived = {
            (number, kind): {name: spec.make(device) for name, spec in specs.items()}
            for number, stage in own.items()
            for kind, specs in (
                (InputKind.CARRY, stage.carry_in),
                (InputKind.CARRY_GRADIENT, stage.gradients_in),
            )
        }
        """Where recordings read what arrived: filled right before the replay that copies it."""
        self.stages = {
            number: StageInterface(self.replay, keep_values, stage.carry_in, stage.gradients_in)
            for number, stage in own.items()
        }

    def record(self, actions: Sequence[Action]) -> None:
        """Record the actions of an update, in order."""
        live: dict[tuple[int, int], LiveValues] = {}
        for part in actions:
            key = part.stage, part.micro_batch
            if part.kind is ActionKind.FORWARD:
                live[key] = {}
                self.own[part.stage].fill(live[key], InputKind.BATCH, self.batches[part.micro_batch])
                self.own[part.stage].fill(live[key], InputKind.SCALAR, self.scalars)
            self.actions[part] = self.record_action(part, live[key])
            if part.kind in ENDS:
                del live[key]

    def record_action(self, part: Action, live: LiveValues) -> RecordedAction:
        """Record one action. What arrived is copied inside of the recording: backward may need it for longer."""
        for handed in self.releases.get(part, ()):
            self.slots.give_back(handed)
        sent = ActionKind.SEND_CARRY if part.kind is ActionKind.FORWARD else ActionKind.SEND_GRAD
        handed_on = Action(part.stage, sent, part.micro_batch)
        stage, outputs = self.own[part.stage], dict[str, Tensor]()
        kinds = find_arriving(part, stage)

        def run() -> None:
            for kind in kinds:
                arrived = self.arrived[part.stage, kind]
                stage.fill(live, kind, {name: value.clone() for name, value in arrived.items()})
            stage.run(part, live)
            for key in [key for key in live if key.startswith(tuple(HANDED_ON.values()))]:
                value = live.pop(key)
                outputs[key] = self.slots.take(handed_on, value)
                outputs[key].copy_(value)

        graph = self.recorder.record(run, self.pool)
        inputs = {
            name_input(kind, name): value for kind in kinds for name, value in self.arrived[part.stage, kind].items()
        }
        return RecordedAction(graph, inputs, outputs)

    def fill(self, batches: Sequence[Mapping[str, Tensor]], scalars: Mapping[str, Tensor]) -> None:
        """Copy the inputs of an update to where the recordings read them."""
        pairs = [*zip(self.batches, batches, strict=True), (self.scalars, scalars)]
        for static, given in pairs:
            for name, value in static.items():
                value.copy_(given[name])

    def replay(self, part: Action, live: LiveValues) -> None:
        """Run one action."""
        recorded = self.actions[part]
        for key, buffer in recorded.inputs.items():
            buffer.copy_(live.pop(key))
        self.recorder.replay(recorded.graph)
        live.update(recorded.outputs)


def find_arriving(part: Action, stage: StageInterface) -> dict[InputKind, Specs]:
    """What an action gets from another stage."""
    if part.kind is ActionKind.FORWARD:
        return {InputKind.CARRY: stage.carry_in}
    return {InputKind.CARRY_GRADIENT: stage.gradients_in} if part.kind in GRADIENT_MAKERS else {}


def keep_values(live: LiveValues, kind: InputKind, values: Mapping[str, Tensor]) -> None:
    """Keep what arrived until the action that reads it; the batch was copied before the update began."""
    if kind in (InputKind.CARRY, InputKind.CARRY_GRADIENT):
        live.update({name_input(kind, name): value for name, value in values.items()})


def copy_all(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The values in memory of their own."""
    return {name: value.clone() for name, value in values.items()}
