"""The training step as one plain function of its inputs: nothing it reads comes from anywhere else.

    step(state, buffers, batch, coords, scalars) -> loss, gradients by slot, metrics by name

`state` holds this rank's shards, `buffers` the model's tables and biases, `batch` the tokens, `coords` the rank's
place in the mesh and `scalars` whatever changes from step to step. Because a rank is known only through `coords`,
the traced text is the same on every rank.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from monograph.annotate import Direction, annotate_direction
from monograph.capture.failure import CaptureError
from monograph.compat.capture import mark_backward
from monograph.models.model import Model, StepOutput, UnitCall
from monograph.parallel.chunks import ByUnit
from monograph.parallel.param_table import ParamTable
from monograph.parallel.shard import FsdpUnitRunner

Tensors = Mapping[str, Tensor]


class StepOutputs(NamedTuple):
    """What one micro-batch yields."""

    loss: Tensor
    gradients: dict[str, Tensor]
    """One per slot, in the reduce dtype, summed over every rank that has a part of it."""
    metrics: dict[str, Tensor]
    """Sums over this rank's tokens, such as the experts' load: added up over micro-batches and ranks."""
    probed: Mapping[str, Tensor] = {}
    """Intermediate values that someone wants to see, by name."""
    carry: Mapping[str, Tensor] = {}
    """Of a pipeline stage: what it hands on."""
    carry_gradients: Mapping[str, Tensor] = {}
    """Of a pipeline stage: the gradients of what it got from the stage before."""


StepFunction = Callable[..., StepOutputs]
OutputProbe = Callable[[Model], AbstractContextManager[Mapping[str, Tensor]]]
"""Watches a model while its step runs: what it finds by then are further outputs of the step."""
Wrap = Callable[[UnitCall], UnitCall]


def make_model_call(
    model: Model,
    table: ParamTable,
    *,
    compute_dtype: torch.dtype,
    reduce_dtype: torch.dtype,
    chunks: ByUnit | None = None,
    skipped: frozenset[nn.Module] = frozenset(),
) -> Callable[..., StepOutput]:
    """The model as a function of the step's inputs.

    `model` gives the structure, its own tensors are never read; units in `chunks` run chunk by chunk, blocks in
    `skipped` not at all. `wrap`, an argument of the function, may put another call of units around ours.
    """
    coords_names = [name for name, _ in model.named_buffers(remove_duplicate=False) if is_coords(name)]

    def call_model(
        state: Tensors, buffers: Tensors, batch: Tensors, coords: Tensor, scalars: Tensors, wrap: Wrap | None = None
    ) -> StepOutput:
        call: UnitCall = FsdpUnitRunner(
            model,
            table,
            state,
            compute_dtype=compute_dtype,
            reduce_dtype=reduce_dtype,
            chunks=chunks,
            skipped=skipped,
        )
        call = call if wrap is None else wrap(call)
        known = dict(buffers) | {name: coords for name in coords_names}
        return torch.func.functional_call(model, known, kwargs=dict(batch) | dict(scalars) | {"call": call})

    return call_model


def make_forward(model: Model, table: ParamTable, **settings: Any) -> StepFunction:
    """The forward half of the step, which is all that evaluation needs; settings as in `make_model_call`."""
    call_model = make_model_call(model, table, **settings)

    def forward(state: Tensors, buffers: Tensors, batch: Tensors, coords: Tensor, scalars: Tensors) -> StepOutputs:
        output = call_model(state, buffers, batch, coords, scalars)
        return StepOutputs(output.loss, {}, output.metrics)

    return forward


def make_step(
    model: Model,
    table: ParamTable,
    *,
    skipped: frozenset[nn.Module] = frozenset(),
    probe: OutputProbe | None = None,
    **settings: Any,
) -> StepFunction:
    """The whole step: forward, and the gradient of the objective; settings as in `make_model_call`."""
    call_model = make_model_call(model, table, skipped=skipped, **settings)
    slots = [slot for slot in table.trained if model.get_submodule(slot.unit) not in skipped]

    def step(state: Tensors, buffers: Tensors, batch: Tensors, coords: Tensor, scalars: Tensors) -> StepOutputs:
        wanted = [state[slot.name] for slot in slots]
        with probe(model) if probe else nullcontext({}) as probed:
            output = call_model(state, buffers, batch, coords, scalars)
            mark_backward(output.objective)
            with annotate_direction(Direction.BACKWARD):
                gradients = torch.autograd.grad(output.objective, wanted, allow_unused=True)
        named = {slot.name: gradient for slot, gradient in zip(slots, gradients, strict=True)}
        check_used(named)
        return StepOutputs(output.loss.detach(), named, output.metrics, probed)

    return step


def check_used(gradients: Mapping[str, Tensor | None]) -> None:
    """Refuse parameters that the loss does not depend on."""
    unused = [name for name, gradient in gradients.items() if gradient is None]
    if unused:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        raise CaptureError(
            f"the loss does not depend on {', '.join(unused[:3])}{more}",
            why="a captured step has a gradient for every parameter",
            do="use or remove them, or train op by op: --compile.mode eager",
        )


def buffers_of(model: Model) -> dict[str, Tensor]:
    """The buffers a step reads, without the coordinates, which are an input of their own."""
    return {name: value for name, value in model.named_buffers() if not is_coords(name)}


def is_coords(name: str) -> bool:
    """Whether a buffer holds the coordinates of the rank: those of parallel parts are called `coords`."""
    return name.rpartition(".")[2] == "coords"
