"""The inputs of a captured step on every rank: shards, buffers, parts of micro-batches, coordinates, scalars."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from monograph.axes import COORDS, Axis
from monograph.capture.source import StepSource
from monograph.execute.base import find_part
from monograph.graph.signature import PARAMETERS, InputKind, InputSpec
from monograph.verify.simulate.coordinates import Coordinates
from monograph.verify.simulate.execute import SharedValue
from monograph.verify.simulate.one_device import OneDevice
from monograph.verify.simulate.precision import widen


class MeshInputs:
    """What each rank's step gets in one round of micro-batches."""

    def __init__(
        self,
        source: StepSource,
        coordinates: Coordinates,
        device: OneDevice,
        drawn: Sequence[Mapping[str, Tensor]],
        dealt: Sequence[int],
        scalars: Mapping[str, Tensor],
    ) -> None:
        self.source, self.coordinates, self.scalars = source, coordinates, scalars
        self.parameters, self.buffers = device.parameters, device.buffers
        self.drawn, self.dealt = drawn, dealt
        self._known: dict[tuple[InputKind, str], SharedValue] = {}
        self._batches: dict[tuple[int, int], dict[str, Tensor]] = {}

    def bind(self, spec: InputSpec) -> SharedValue:
        """The value of an input on every rank."""
        key = spec.kind, spec.name
        if key not in self._known:
            self._known[key] = self._make(spec)
        return self._known[key]

    def _make(self, spec: InputSpec) -> SharedValue:
        mesh, everyone = self.coordinates.mesh, self.coordinates.one
        if spec.kind in PARAMETERS:
            slot = self.source.table[spec.name]
            part = self.coordinates.by_key([slot.extents(rank) for rank in self.coordinates.ranks])
            whole = self.parameters[slot.name]
            return SharedValue(part, [slot.take_shard(whole, first) for first in part.firsts])
        if spec.kind is InputKind.COORDS:
            places = [[mesh.coordinate(rank, axis) for axis in COORDS] for rank in self.coordinates.ranks]
            part = self.coordinates.by_key([tuple(place) for place in places])
            return SharedValue(part, [torch.tensor(places[first]) for first in part.firsts])
        if spec.kind is InputKind.BUFFER:
            return SharedValue(everyone, [widen(self.buffers.get(spec.name, self.source.buffers[spec.name]))])
        if spec.kind is InputKind.SCALAR:
            return SharedValue(everyone, [self.scalars[spec.name]])
        reads = [(self.dealt[mesh.data_part(rank)], mesh.coordinate(rank, Axis.CP)) for rank in self.coordinates.ranks]
        part = self.coordinates.by_key(reads)
        return SharedValue(part, [widen(self._prepare(*reads[first])[spec.name]) for first in part.firsts])

    def _prepare(self, number: int, place: int) -> dict[str, Tensor]:
        """What a rank with this place on the cp axis reads of a micro-batch."""
        key = number, place
        if key not in self._batches:
            part = find_part(self.coordinates.mesh, place)
            self._batches[key] = self.source.model.step_inputs(self.drawn[number], part)
        return self._batches[key]
