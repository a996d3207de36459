"""The tensors of one call of a step, by kind and name: what it is captured with, and what it is run on."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from monograph.graph.signature import InputKind, InputSpec, describe_input

_FIELDS = {
    InputKind.STATE: "state",
    InputKind.FROZEN: "state",
    InputKind.BUFFER: "buffers",
    InputKind.BATCH: "batch",
    InputKind.SCALAR: "scalars",
    InputKind.CARRY: "carry",
    InputKind.CARRY_GRADIENT: "carry_gradients",
}


@dataclass(frozen=True)
class StepInputs:
    """All inputs of a step; for a capture only their shapes, dtypes and devices matter."""

    state: Mapping[str, Tensor]
    """This rank's shards, by slot."""
    buffers: Mapping[str, Tensor]
    batch: Mapping[str, Tensor]
    coords: Tensor
    """This rank's coordinates in the mesh."""
    scalars: Mapping[str, Tensor]
    """What changes from step to step, such as the number of targets."""
    frozen: Collection[str] = ()
    """Slots that have no gradient."""
    carry: Mapping[str, Tensor] = field(default_factory=dict)
    """Of a pipeline stage: what the stage before it hands on."""
    carry_gradients: Mapping[str, Tensor] = field(default_factory=dict)
    """Of a pipeline stage: the gradients of what it hands on."""

    def kind_of(self, slot: str) -> InputKind:
        """Whether a parameter is trained or frozen."""
        return InputKind.FROZEN if slot in self.frozen else InputKind.STATE

    def flat(self) -> list[tuple[InputKind, str, Tensor]]:
        """All of them in the order of the graph's inputs."""
        return [
            *((self.kind_of(name), name, value) for name, value in self.state.items()),
            *((InputKind.BUFFER, name, value) for name, value in self.buffers.items()),
            *((InputKind.BATCH, name, value) for name, value in self.batch.items()),
            (InputKind.COORDS, "coords", self.coords),
            *((InputKind.SCALAR, name, value) for name, value in self.scalars.items()),
            *((InputKind.CARRY, name, value) for name, value in self.carry.items()),
            *((InputKind.CARRY_GRADIENT, name, value) for name, value in self.carry_gradients.items()),
        ]

    def specs(self) -> tuple[InputSpec, ...]:
        """Their names, shapes and dtypes, in the same order."""
        return tuple(describe_input(*named) for named in self.flat())

    def get(self, spec: InputSpec) -> Tensor:
        """The tensor that a spec names."""
        if spec.kind is InputKind.COORDS:
            return self.coords
        named: Mapping[str, Tensor] = getattr(self, _FIELDS[spec.kind])
        return named[spec.name]
