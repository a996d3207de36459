"""How two runs of a step differ: tensor by tensor, bit for bit, and how much."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

TOLERANCE = 1e-2
"""Largest difference of a tensor, relative to its norm, that counts as rounding."""


@dataclass(frozen=True)
class Difference:
    """One tensor that is not the same in both runs."""

    name: str
    """`loss`, or the slot whose gradient it is."""
    relative: float
    """Norm of the difference over the norm of the first."""

    def __str__(self) -> str:
        what = "the loss" if self.name == "loss" else f"the gradient of {self.name}"
        return f"{what} differs by {self.relative:.1e} relative"


def find_differences(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[Difference]:
    """Every tensor that differs in a bit, in the order of the first; both have the same names."""
    return [
        Difference(name, measure(value, other[name])) for name, value in one.items() if is_other(value, other[name])
    ]


def is_other(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ in dtype, shape or any bit."""
    if one.dtype is not other.dtype or one.shape != other.shape:
        return True
    left, right = (each.detach().contiguous().flatten().view(torch.uint8) for each in (one, other))
    return not torch.equal(left, right)


def measure(one: Tensor, other: Tensor) -> float:
    """The relative difference of two tensors of one shape; nan where either is."""
    left, right = one.detach().double(), other.detach().double()
    norm = left.norm().item()
    distance = (left - right).norm().item()
    return distance / norm if norm else float(distance > 0)
