"""What `verify` starts from: the first weights of a run, of which those that are all alike are moved apart.

Norms begin at 1, biases of matmuls and of routers at 0: a step that takes the wrong one, or none, computes the same.
"""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from monograph.execute.base import MeshStep
from monograph.verify.reference import buffers_of

SPREAD = 0.1
"""Standard deviation of what is added."""


@torch.no_grad()
def spread_model(model: nn.Module, seed: int) -> None:
    """Move the weights and buffers of a whole model that are all alike."""
    for name, value in (dict(model.named_parameters()) | buffers_of(model)).items():
        if _is_alike(value):
            value.add_(_draw(name, value.shape, seed).to(value))


@torch.no_grad()
def spread_shards(step: MeshStep, seed: int) -> None:
    """The same for what a rank holds of a model."""
    rank = step.rank
    for slot in step.whole_table:
        if slot.name not in step.parameters:
            continue
        extents = slot.extents(rank)
        held = slot.valid_part(step.parameters[slot.name], rank)
        if all(extent.size for extent in extents) and _is_alike(held):
            whole = _draw(slot.name, slot.shape, seed)
            held.add_(whole[tuple(slice(each.start, each.start + each.size) for each in extents)].to(held))
    for name, value in buffers_of(step.model).items():
        if _is_alike(value):
            value.add_(_draw(name, value.shape, seed).to(value))


def _is_alike(value: Tensor) -> bool:
    """Vectors count as alike, because a rank may hold one element of them."""
    return value.is_floating_point() and (value.dim() < 2 or bool((value == value.flatten()[0]).all()))


def _draw(name: str, shape: Sequence[int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))
    return torch.randn(tuple(shape), generator=generator) * SPREAD
