"""The training step as one plain function of its inputs: nothing it reads comes from anywhere else.

    step(state, buffers, batch, coords, scalars) -> loss, gradients by slot, loads

`state` holds this rank's shards, `buffers` the model's tables and biases, `batch` the tokens, `coords` the rank's
place in the mesh and `scalars` whatever changes from step to step. Because a rank is known only through `coords`,
the traced text is the same on every rank.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from monograph.annotate import Direction, annotate_direction
from monograph.compat.capture import mark_backward
from monograph.models.decoder import Decoder
from monograph.parallel.chunks import ByUnit
from monograph.parallel.param_table import ParamTable
from monograph.parallel.shard import ShardedCall

Tensors = Mapping[str, Tensor]


class StepOutputs(NamedTuple):
    """What one micro-batch yields."""

    loss: Tensor
    gradients: dict[str, Tensor]
    """One per slot, in the reduce dtype, summed over every rank that has a part of it."""
    loads: Tensor | None
    """Tokens each expert got from this rank; None without experts."""


def make_forward(
    model: Decoder,
    table: ParamTable,
    *,
    compute_dtype: torch.dtype,
    reduce_dtype: torch.dtype,
    chunks: ByUnit | None = None,
    skipped: frozenset[nn.Module] = frozenset(),
) -> Callable[[Tensors, Tensors, Tensors, Tensor, Tensors], StepOutputs]:
    """The forward half of the step, which is all that evaluation needs.

    `model` gives the structure, its own tensors are never read; units in `chunks` run chunk by chunk, blocks in
    `skipped` not at all.
    """
    places = [name for name, _ in model.named_buffers(remove_duplicate=False) if name.endswith("coords")]

    def forward(state: Tensors, buffers: Tensors, batch: Tensors, coords: Tensor, scalars: Tensors) -> StepOutputs:
        call = ShardedCall(
            model,
            table,
            state,
            compute_dtype=compute_dtype,
            reduce_dtype=reduce_dtype,
            chunks=chunks,
            skipped=skipped,
        )
        known = dict(buffers) | {name: coords for name in places}
        output = torch.func.functional_call(model, known, kwargs=dict(batch) | dict(scalars) | {"call": call})
        return StepOutputs(output.value, {}, output.loads)

    return forward


def make_step(
    model: Decoder, table: ParamTable, *, skipped: frozenset[nn.Module] = frozenset(), **settings: Any
) -> Callable[[Tensors, Tensors, Tensors, Tensor, Tensors], StepOutputs]:
    """The whole step: the forward half as `make_forward` has it, and the gradient of its loss."""
    forward = make_forward(model, table, skipped=skipped, **settings)
    slots = [slot for slot in table if model.get_submodule(slot.unit) not in skipped]

    def step(state: Tensors, buffers: Tensors, batch: Tensors, coords: Tensor, scalars: Tensors) -> StepOutputs:
        output = forward(state, buffers, batch, coords, scalars)
        wanted = [state[slot.name] for slot in slots]
        mark_backward(output.loss)
        with annotate_direction(Direction.BACKWARD):
            gradients = torch.autograd.grad(output.loss, wanted)
        named = {slot.name: gradient for slot, gradient in zip(slots, gradients, strict=True)}
        return StepOutputs(output.loss.detach(), named, output.loads)

    return step


def buffers_of(model: Decoder) -> dict[str, Tensor]:
    """The buffers a step reads, without the coordinates, which are an input of their own."""
    return {name: value for name, value in model.named_buffers() if not name.endswith("coords")}
