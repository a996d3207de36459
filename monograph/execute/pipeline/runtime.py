"""Runs a rank's list of actions: calls the stages' programs, posts sends and receives, waits for what is missing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from monograph.execute.pipeline.links import Links, Pending, Specs
from monograph.execute.pipeline.run_times import RunTimes
from monograph.execute.pipeline.stage_program import HANDED_ON, LiveValues
from monograph.graph.signature import InputKind, OutputKind
from monograph.parallel.pipeline.actions import Action, ActionKind
from monograph.parallel.pipeline.releases import NOTHING, Releases
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.transfers import GRADIENT_MAKERS, find_receive

RunPart = Callable[[Action, LiveValues], None]
Fill = Callable[[LiveValues, InputKind, Mapping[str, Tensor]], None]


@dataclass(frozen=True)
class StageInterface:
    """What the runtime needs of a stage on this rank."""

    run: RunPart
    fill: Fill
    carry_in: Specs
    """What comes from the stage before."""
    gradients_in: Specs
    """The gradients that come from the stage after: of what it hands on and has one."""


class PipelineRun:
    """One run of a schedule on one rank."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        stages: Mapping[int, StageInterface],
        links: Links,
        batches: Sequence[Mapping[str, Tensor]],
        scalars: Mapping[str, Tensor],
        releases: Releases = NOTHING,
    ) -> None:
        self.schedule, self.rank, self.stages, self.links = schedule, rank, stages, links
        self.batches, self.scalars, self.releases = batches, scalars, releases
        self.live: dict[tuple[int, int], LiveValues] = {}
        self.arriving: dict[Action, Pending] = {}
        self.leaving: dict[Action, Pending] = {}
        self.results: dict[tuple[int, int, OutputKind], dict[str, Tensor]] = {}
        """What stages hand on, until it is sent."""
        self.times = RunTimes(links.device)

    def run(self) -> RunTimes:
        """All actions, then all sends that are still under way."""
        for action in self.schedule.actions[self.rank]:
            if action.kind in (ActionKind.RECV_CARRY, ActionKind.RECV_GRAD):
                self.post_receive(action)
            elif action.is_transfer:
                self.post_send(action)
            else:
                for part in action.parts:
                    self.compute(part)
        for pending in self.leaving.values():
            self.links.wait(pending, f"the end of the update, where {pending.what} is under way,")
        self.times.finish()
        return self.times

    def post_receive(self, action: Action) -> None:
        """Start a receive."""
        stage = self.stages[action.stage]
        specs = stage.carry_in if action.kind is ActionKind.RECV_CARRY else stage.gradients_in
        peer = self.schedule.stage_ranks[action.partner.stage]
        self.arriving[action] = self.links.receive(str(action.partner), peer, specs)

    def post_send(self, action: Action) -> None:
        """Start a send; the first action that knows of its arrival lets go of its values."""
        kind = OutputKind.CARRY if action.kind is ActionKind.SEND_CARRY else OutputKind.CARRY_GRADIENT
        peer = self.schedule.stage_ranks[action.partner.stage]
        values = self.results.pop((action.stage, action.micro_batch, kind))
        self.leaving[action] = self.links.send(str(action.partner), peer, values)

    def compute(self, part: Action) -> None:
        """Wait for an action's input, and run it."""
        live = self.find_live(part)
        receive = find_receive(part, self.schedule.stage_ranks)
        if receive is not None:
            kind = InputKind.CARRY if receive.kind is ActionKind.RECV_CARRY else InputKind.CARRY_GRADIENT
            values = self.links.wait(self.arriving.pop(receive), str(part))
            self.stages[part.stage].fill(live, kind, values)
        for send in self.releases.get(part, ()):
            if send in self.leaving:  # what stays on this rank is named as if it were sent
                self.links.wait(self.leaving.pop(send), str(part))
        with self.times.computing(str(part)):
            self.stages[part.stage].run(part, live)
        self.hand_over(part)
        if part.kind in (ActionKind.BACKWARD, ActionKind.WEIGHT_GRAD):
            del self.live[part.stage, part.micro_batch]

    def find_live(self, part: Action) -> LiveValues:
        """The values of a micro-batch on a stage; made when its forward begins."""
        key = part.stage, part.micro_batch
        if part.kind is ActionKind.FORWARD:
            live = self.live.setdefault(key, {})
            stage = self.stages[part.stage]
            stage.fill(live, InputKind.BATCH, self.batches[part.micro_batch])
            stage.fill(live, InputKind.SCALAR, self.scalars)
        return self.live[key]

    def hand_over(self, part: Action) -> None:
        """Give a result to the next or the previous stage where that is on this rank, or keep it to be sent."""
        if part.kind is ActionKind.FORWARD:
            to, kind, given = part.stage + 1, OutputKind.CARRY, InputKind.CARRY
        elif part.kind in GRADIENT_MAKERS:
            to, kind, given = part.stage - 1, OutputKind.CARRY_GRADIENT, InputKind.CARRY_GRADIENT
        else:
            return
        values = self.take_results(part.stage, part.micro_batch, kind)
        if to in self.stages:
            self.stages[to].fill(self.live.setdefault((to, part.micro_batch), {}), given, values)
        elif 0 <= to < self.schedule.stages:
            self.results[part.stage, part.micro_batch, kind] = values

    def take_results(self, stage: int, micro_batch: int, kind: OutputKind) -> dict[str, Tensor]:
        """What a stage hands on, by name."""
        live, prefix = self.live[stage, micro_batch], HANDED_ON[kind]
        names = [key for key in live if key.startswith(prefix)]
        return {name.removeprefix(prefix): live.pop(name).contiguous() for name in names}
