"""A stage run op by op, with autograd in place of a captured backward: for schedules with whole backwards.

In layer mode its blocks are compiled, one graph for each kind; all else is the same.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from monograph.capture.chunks import find_source_chunks
from monograph.capture.source import StepSource
from monograph.capture.stage import detach, differentiate
from monograph.execute.activation_checkpoint import find_runner
from monograph.execute.base import StepSettings
from monograph.execute.layer import LayerCall
from monograph.execute.pipeline.stage_program import HANDED_ON, LiveValues, name_input
from monograph.execute.program import OutputCallback
from monograph.execute.sharded import CheckpointedBlockRunner
from monograph.graph.signature import InputKind, OutputKind, OutputSpec
from monograph.models.model import StepOutput
from monograph.parallel.pipeline.actions import Action, ActionKind
from monograph.parallel.pipeline.stage_runner import StageRunner
from monograph.parallel.shard import FsdpUnitRunner, call_function


class EagerStage:
    """Runs the units of a stage; outputs go the same way as those of captured stages."""

    def __init__(
        self, source: StepSource, settings: StepSettings, take: OutputCallback, layers: LayerCall | None = None
    ) -> None:
        assert source.stage is not None
        self.source, self.stage, self.model, self.take = source, source.stage, source.model, take
        run: Callable[..., Any] = call_function
        if layers is not None:
            run = layers.run
        elif runner := find_runner(settings.activations.mode):
            run = CheckpointedBlockRunner(runner, set(self.model.blocks().values()))
        self.call = FsdpUnitRunner(
            self.model,
            source.table,
            source.parameters,
            compute_dtype=settings.compute_dtype,
            reduce_dtype=settings.reduce_dtype,
            reshard=settings.reshard,
            run=run,
            chunks=find_source_chunks(source),
        )

    def fill(self, live: LiveValues, kind: InputKind, values: Mapping[str, Tensor]) -> None:
        """Add inputs to live values."""
        for name, value in values.items():
            live[name_input(kind, name)] = value

    def run(self, part: Action, live: LiveValues) -> None:
        """Forward or backward of a micro-batch."""
        if part.kind is ActionKind.FORWARD:
            self.run_forward(live)
        else:
            assert part.kind is ActionKind.BACKWARD, "an eager stage has whole backwards"
            self.run_backward(live)

    def evaluate(self, _part: Action, live: LiveValues) -> None:
        """A forward without gradients, in evaluation mode."""
        self.model.eval()
        try:
            with torch.no_grad():
                output, handed_on = self.forward(live, take_all(live, InputKind.CARRY))
        finally:
            self.model.train()
        self.take(OutputSpec(kind=OutputKind.LOSS), output.loss)
        self.hand_on(live, OutputKind.CARRY, handed_on)

    def forward(self, live: LiveValues, carry: Mapping[str, Tensor]) -> tuple[StepOutput, dict[str, Tensor]]:
        """The model's forward as far as it is this stage's, and its carry."""
        runner = StageRunner(self.model, self.stage, self.call, carry)
        inputs = take_all(live, InputKind.BATCH) | take_all(live, InputKind.SCALAR)
        output: StepOutput = self.model(**inputs, call=runner)
        return output, runner.carry

    def run_forward(self, live: LiveValues) -> None:
        carry = {
            name: value.detach().requires_grad_(value.is_floating_point())
            for name, value in take_all(live, InputKind.CARRY).items()
        }
        output, handed_on = self.forward(live, carry)
        self.take(OutputSpec(kind=OutputKind.LOSS), output.loss.detach())
        for name, value in output.metrics.items():
            self.take(OutputSpec(kind=OutputKind.METRIC, name=name), value)
        live["carry"], live["handed_on"], live["objective"] = carry, handed_on, output.objective
        self.hand_on(live, OutputKind.CARRY, detach(handed_on))

    def run_backward(self, live: LiveValues) -> None:
        carry, handed_on, objective = (live.pop(name) for name in ("carry", "handed_on", "objective"))
        seeds = take_all(live, InputKind.CARRY_GRADIENT)
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
        self.hand_on(live, OutputKind.CARRY_GRADIENT, back)

    def hand_on(self, live: LiveValues, kind: OutputKind, values: Mapping[str, Tensor]) -> None:
        """Leave values in the live for another stage."""
        for name, value in values.items():
            live[f"{HANDED_ON[kind]}{name}"] = value

    def close(self) -> None:
        """Nothing was captured."""


def take_all(live: LiveValues, kind: InputKind) -> dict[str, Any]:
    """The inputs of one kind, by name; they are not needed again."""
    prefix = name_input(kind, "")
    return {key.removeprefix(prefix): live.pop(key) for key in list(live) if key.startswith(prefix)}
