"""A stage run op by op, with autograd in place of a captured backward: for schedules with whole backwards."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from monograph.capture.source import StepSource
from monograph.capture.stage import detach, differentiate
from monograph.execute.activation_checkpoint import find_runner
from monograph.execute.base import StepSettings
from monograph.execute.pipeline.stage_program import HANDED_ON, Box, name_input
from monograph.execute.program import OutputCallback
from monograph.execute.sharded import CheckpointedBlockRunner
from monograph.graph.signature import InputKind, OutputKind, OutputSpec
from monograph.models.model import StepOutput
from monograph.parallel.pipeline.actions import ActionKind
from monograph.parallel.pipeline.stage_runner import StageRunner
from monograph.parallel.shard import FsdpUnitRunner, call_function


class EagerStage:
    """Runs the units of a stage; outputs go the same way as those of captured stages."""

    def __init__(self, source: StepSource, settings: StepSettings, take: OutputCallback) -> None:
        assert source.stage is not None
        self.source, self.stage, self.model, self.take = source, source.stage, source.model, take
        runner = find_runner(settings.activations.mode)
        blocks = set(self.model.blocks().values())
        self.call = FsdpUnitRunner(
            self.model,
            source.table,
            source.parameters,
            compute_dtype=settings.compute_dtype,
            reduce_dtype=settings.reduce_dtype,
            reshard=settings.reshard,
            run=CheckpointedBlockRunner(runner, blocks) if runner is not None else call_function,
        )

    def fill(self, box: Box, kind: InputKind, values: Mapping[str, Tensor]) -> None:
        """Put inputs into a box."""
        for name, value in values.items():
            box[name_input(kind, name)] = value

    def run(self, kind: ActionKind, box: Box) -> None:
        """Forward or backward of a micro-batch."""
        if kind is ActionKind.FORWARD:
            self.run_forward(box)
        else:
            assert kind is ActionKind.BACKWARD, "an eager stage has whole backwards"
            self.run_backward(box)

    def evaluate(self, _kind: ActionKind, box: Box) -> None:
        """A forward without gradients, in evaluation mode."""
        self.model.eval()
        try:
            with torch.no_grad():
                output, handed_on = self.forward(box, take_all(box, InputKind.CARRY))
        finally:
            self.model.train()
        self.take(OutputSpec(kind=OutputKind.LOSS), output.loss)
        self.hand_on(box, OutputKind.CARRY, handed_on)

    def forward(self, box: Box, carry: Mapping[str, Tensor]) -> tuple[StepOutput, dict[str, Tensor]]:
        """The model's forward as far as it is this stage's, and its carry."""
        runner = StageRunner(self.model, self.stage, self.call, carry)
        inputs = take_all(box, InputKind.BATCH) | take_all(box, InputKind.SCALAR)
        output: StepOutput = self.model(**inputs, call=runner)
        return output, runner.carry

    def run_forward(self, box: Box) -> None:
        carry = {
            name: value.detach().requires_grad_(value.is_floating_point())
            for name, value in take_all(box, InputKind.CARRY).items()
        }
        output, handed_on = self.forward(box, carry)
        self.take(OutputSpec(kind=OutputKind.LOSS), output.loss.detach())
        for name, value in output.metrics.items():
            self.take(OutputSpec(kind=OutputKind.METRIC, name=name), value)
        box["carry"], box["handed_on"], box["objective"] = carry, handed_on, output.objective
        self.hand_on(box, OutputKind.CARRY, detach(handed_on))

    def run_backward(self, box: Box) -> None:
        carry, handed_on, objective = (box.pop(name) for name in ("carry", "handed_on", "objective"))
        seeds = take_all(box, InputKind.CARRY_GRADIENT)
        ends: list[tuple[Tensor, Tensor | None]] = [
            (value, seeds[name]) for name, value in handed_on.items() if value.requires_grad
        ]
        if objective.requires_grad:
            ends.append((objective, None))
        wanted = {slot.name: self.source.parameters[slot.name] for slot in self.source.table.trained}
        incoming = {name: value for name, value in carry.items() if value.requires_grad}
        found = differentiate(ends, [*wanted.values(), *incoming.values()])
        for name, gradient in zip(wanted, found, strict=False):
            if gradient is not None:
                self.take(OutputSpec(kind=OutputKind.GRADIENT, name=name), gradient)
        pairs = zip(incoming.items(), found[len(wanted) :], strict=True)
        back = {name: torch.zeros_like(value) if given is None else given for (name, value), given in pairs}
        self.hand_on(box, OutputKind.CARRY_GRADIENT, back)

    def hand_on(self, box: Box, kind: OutputKind, values: Mapping[str, Tensor]) -> None:
        """Leave values in the box for another stage."""
        for name, value in values.items():
            box[f"{HANDED_ON[kind]}{name}"] = value

    def close(self) -> None:
        """Nothing was captured."""


def take_all(box: Box, kind: InputKind) -> dict[str, Any]:
    """The inputs of one kind, by name; they are not needed again."""
    prefix = name_input(kind, "")
    return {key.removeprefix(prefix): box.pop(key) for key in list(box) if key.startswith(prefix)}
