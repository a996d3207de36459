"""One stage of a pipeline as a plain function of its inputs, like the whole step (step.py):

    step(state, buffers, batch, coords, scalars, carry, carry_gradients)
        -> loss, gradients by slot, metrics by name, carry, gradients of the carry it got

The loss is that of the last stage; others have 0, and may add auxiliary losses of their own to what is differentiated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from monograph.annotate import Direction, annotate_direction
from monograph.capture.step import StepFunction, StepOutputs, Tensors, check_used, make_model_call
from monograph.compat.capture import fake_tensors, mark_backward
from monograph.graph.inputs import StepInputs
from monograph.models.model import Model, StepOutput, UnitCall
from monograph.parallel.param_table import ParamTable
from monograph.parallel.pipeline.stage_runner import Stage, StageRunner


class StageForward:
    """The forward of one stage, and what it handed on."""

    def __init__(self, model: Model, table: ParamTable, stage: Stage, **settings: Any) -> None:
        self.model, self.stage = model, stage
        self.call_model = make_model_call(model, table, **settings)

    def __call__(self, inputs: tuple[Any, ...], carry: Tensors) -> tuple[StepOutput, dict[str, Tensor]]:
        runners: list[StageRunner] = []

        def wrap(call: UnitCall) -> UnitCall:
            runners.append(StageRunner(self.model, self.stage, call, carry))
            return runners[0]

        output = self.call_model(*inputs, wrap)
        return output, runners[0].carry


def make_stage_forward(model: Model, table: ParamTable, stage: Stage, **settings: Any) -> StepFunction:
    """The forward half, for evaluation; settings as in `make_model_call`."""
    forward = StageForward(model, table, stage, **settings)

    def run(
        state: Tensors,
        buffers: Tensors,
        batch: Tensors,
        coords: Tensor,
        scalars: Tensors,
        carry: Tensors = {},  # noqa: B006 - never changed
        carry_gradients: Tensors = {},  # noqa: B006 - of an evaluation there are none
    ) -> StepOutputs:
        output, handed_on = forward((state, buffers, batch, coords, scalars), carry)
        return StepOutputs(output.loss, {}, output.metrics, carry=handed_on)

    return run


def make_stage_step(
    model: Model,
    table: ParamTable,
    stage: Stage,
    *,
    skipped: frozenset[nn.Module] = frozenset(),
    **settings: Any,
) -> StepFunction:
    """Forward and backward of the stage; settings as in `make_model_call`."""
    forward = StageForward(model, table, stage, skipped=skipped, **settings)
    slots = [slot for slot in table.trained if model.get_submodule(slot.unit) not in skipped]

    def step(
        state: Tensors,
        buffers: Tensors,
        batch: Tensors,
        coords: Tensor,
        scalars: Tensors,
        carry: Tensors = {},  # noqa: B006 - never changed
        carry_gradients: Tensors = {},  # noqa: B006 - never changed
    ) -> StepOutputs:
        output, handed_on = forward((state, buffers, batch, coords, scalars), carry)
        ends: list[tuple[Tensor, Tensor | None]] = [
            (value, carry_gradients[name]) for name, value in handed_on.items() if value.requires_grad
        ]
        if output.objective.requires_grad:
            ends.append((output.objective, None))
        wanted = {slot.name: state[slot.name] for slot in slots}
        incoming = {name: value for name, value in carry.items() if value.is_floating_point()}
        for value, _ in ends:
            mark_backward(value)
        with annotate_direction(Direction.BACKWARD):
            found = differentiate(ends, [*wanted.values(), *incoming.values()])
            gradients = dict(zip(wanted, found, strict=False))
            back = {
                name: torch.zeros_like(value) if gradient is None else gradient
                for (name, value), gradient in zip(incoming.items(), found[len(wanted) :], strict=True)
            }
        check_used(gradients)
        loss = output.loss.detach()
        return StepOutputs(loss, gradients, output.metrics, carry=detach(handed_on), carry_gradients=back)  # type: ignore[arg-type]

    return step


def differentiate(ends: list[tuple[Tensor, Tensor | None]], wanted: list[Tensor]) -> list[Tensor | None]:
    """The gradients of all ends together; None where none depends on a value."""
    if not ends or not wanted:
        return [None] * len(wanted)
    values, seeds = zip(*ends, strict=True)
    return list(torch.autograd.grad(values, wanted, grad_outputs=seeds, allow_unused=True))


def detach(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same values without their history."""
    return {name: value.detach() for name, value in values.items()}


@dataclass(frozen=True)
class CarrySpec:
    """One value that goes from unit to unit."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]

    def make(self, device: torch.device) -> Tensor:
        """What arrives at another unit's rank: dense, whatever it was where it was made."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def find_carries(
    model: Model, table: ParamTable, inputs: StepInputs, *, skipped: frozenset[nn.Module], **settings: Any
) -> dict[str, dict[str, CarrySpec]]:
    """What every unit of the model hands on, by path and name: from a forward of the whole model on fake tensors.

    Blocks in `skipped` hand on what they get.
    """
    names = {model.get_submodule(unit.path): unit for unit in model.units()}
    found: dict[str, dict[str, CarrySpec]] = {}

    def wrap(call: UnitCall) -> UnitCall:
        def watched(module: nn.Module, *args: Any) -> Any:
            result = call(module, *args)
            unit = names[module]
            results = result if isinstance(result, tuple) else (result,)
            pairs = zip(unit.carry, results, strict=False)
            found[unit.path] = {
                name: CarrySpec(tuple(value.shape), value.dtype, tuple(value.stride()))
                for name, value in pairs
                if isinstance(value, Tensor)
            }
            return result

        return watched

    with fake_tensors(), torch.no_grad():
        fake = [
            {name: fake_like(value) for name, value in values.items()}
            for values in (inputs.state, inputs.buffers, inputs.batch, inputs.scalars)
        ]
        state, buffers, batch, scalars = fake
        call_model = make_model_call(model, table, skipped=skipped, **settings)
        call_model(state, buffers, batch, fake_like(inputs.coords), scalars, wrap)
    return found


def fake_like(value: Tensor) -> Tensor:
    """A tensor of the same form, made in the mode that is active."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
