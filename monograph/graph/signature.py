"""What goes into a step and what comes out, by name: binding by position is how the wrong tensor gets bound."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor


class InputKind(StrEnum):
    """Who provides an input; parameters are trained (state) or frozen. A pipeline stage gets the carry of the stage
    before it, and the gradient of its own carry from the stage after it."""

    STATE = "state"
    FROZEN = "frozen"
    BUFFER = "buffer"
    BATCH = "batch"
    COORDS = "coords"
    SCALAR = "scalar"
    CARRY = "carry"
    CARRY_GRADIENT = "carry_gradient"


PARAMETERS = (InputKind.STATE, InputKind.FROZEN)


class OutputKind(StrEnum):
    """What an output is; a pipeline stage hands on its carry, and back the gradient of the carry it got."""

    LOSS = "loss"
    GRADIENT = "gradient"
    METRIC = "metric"
    PROBED = "probed"
    CARRY = "carry"
    CARRY_GRADIENT = "carry_gradient"


@dataclass(frozen=True, kw_only=True)
class InputSpec:
    """One input: everything that has to match at run time."""

    kind: InputKind
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...]
    device: str

    def check(self, value: Tensor) -> None:
        """Refuse a tensor that is not what was captured."""
        found = (tuple(value.shape), value.dtype, value.device.type)
        wanted = (self.shape, self.dtype, self.device)
        if found != wanted:
            raise ValueError(f"input {self.kind}/{self.name}: captured {wanted}, given {found}")
        if value.stride() != self.stride and value.numel() > 1:
            raise ValueError(f"input {self.kind}/{self.name}: captured strides {self.stride}, given {value.stride()}")


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """One output; gradients carry the name of their slot, metrics and recorded values their own."""

    kind: OutputKind
    name: str = ""


def describe_input(kind: InputKind, name: str, value: Tensor) -> InputSpec:
    """The spec of a tensor as it stands."""
    return InputSpec(
        kind=kind,
        name=name,
        shape=tuple(value.shape),
        dtype=value.dtype,
        stride=tuple(value.stride()),
        device=value.device.type,
    )
