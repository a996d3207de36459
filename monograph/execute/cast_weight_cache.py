"""Weights as modules compute with them, cast from one update to the next (pass cache_cast_weights)."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from monograph.compat.modules import version_of
from monograph.graph.cast_weights import CachedCast


class CastWeightCache:
    """Copies of parameters in the compute dtype, at addresses that never change, shared by all programs of a step.

    They are cast again once after every update, before whatever reads them first, except those that the optimizer wrote
    itself. Weights that something else changes, such as loading a checkpoint, are noticed by torch's version counters,
    which may not see what kernels of an optimizer write. Parameters that are only joined, in
    the dtype they are stored in, are not copied: they become views of the buffer.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._buffers: dict[CachedCast, Tensor] = {}
        self._copies: dict[str, list[Tensor]] = {}
        self._versions: dict[str, int] = {}
        self._joined: set[str] = set()
        """Parameters that are views of a buffer."""
        self._written: set[str] = set()
        """By the optimizer since the last refresh."""
        self._is_updated = True
        """Whether weights may have changed unseen since the last refresh."""

    @property
    def buffers(self) -> Collection[Tensor]:
        """All of its memory."""
        return self._buffers.values()

    def get(self, cast: CachedCast) -> Tensor:
        """The buffer of a cast weight; the next `refresh` fills it."""
        if cast not in self._buffers:
            parts = [self._parameters[slot] for slot in cast.slots]
            rows = sum(part.shape[0] for part in parts)
            buffer = torch.empty((rows, *parts[0].shape[1:]), dtype=cast.dtype, device=parts[0].device)
            self._buffers[cast] = buffer
            places = dict(zip(cast.slots, buffer.split([part.shape[0] for part in parts]), strict=True))
            if self._joined.isdisjoint(places) and {part.dtype for part in parts} == {cast.dtype}:
                self._store_in(places)
            else:
                for slot, copy in places.items():
                    self._copies.setdefault(slot, []).append(copy)
                    self._versions.pop(slot, None)
        return self._buffers[cast]

    @torch.no_grad()
    def _store_in(self, places: Mapping[str, Tensor]) -> None:
        """Move parameters there: they stay the same objects, so whoever holds them reads and writes the new place."""
        for slot, place in places.items():
            parameter = self._parameters[slot]
            place.copy_(parameter)
            parameter.data = place
        self._joined.update(places)

    def expect_update(self) -> None:
        """An update begins: until the next refresh, weights change whether or not version counters see it."""
        self._is_updated = True

    @torch.no_grad()
    def refresh(self) -> None:
        """Before a micro-batch, of training or evaluation: cast again what was written since the last one.

        Between updates the version counters tell; after an update every weight is cast again unless the optimizer wrote
        the copy itself.
        """
        for slot, copies in self._copies.items():
            version = version_of(self._parameters[slot])
            is_suspect = self._is_updated and slot not in self._written
            if is_suspect or self._versions.get(slot) != version:
                for copy in copies:
                    copy.copy_(self._parameters[slot])
                self._versions[slot] = version
        self._written.clear()
        self._is_updated = False

    def find_copy(self, slot: str) -> Tensor | None:
        """The copy that an optimizer may write with its parameter: one that is up to date, and the only one."""
        copies = self._copies.get(slot, ())
        is_current = self._versions.get(slot) == version_of(self._parameters[slot])
        return copies[0] if len(copies) == 1 and is_current else None

    def trust(self, slots: list[str]) -> None:
        """These copies were just written along with their parameters."""
        self._versions |= {slot: version_of(self._parameters[slot]) for slot in slots}
        self._written |= set(slots)
