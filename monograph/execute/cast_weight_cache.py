"""Weights as modules compute with them, kept from one update to the next (pass cache_cast_weights)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from monograph.compat.modules import version_of
from monograph.graph.cast_weights import CachedCast


class CastWeightCache:
    """Narrow copies of parameters at addresses that never change, one for all programs of a step.

    They are made anew for every update, but for those that the optimizer says it has written itself. torch counts how
    often a tensor was written, although not by all optimizers; whoever else changes the weights, a checkpoint or a
    person, is noticed by that count.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._buffers: dict[CachedCast, Tensor] = {}
        self._copies: dict[str, list[Tensor]] = {}
        self._versions: dict[str, int] = {}
        self._written: set[str] = set()
        """By the optimizer since the last refresh."""

    def get(self, kept: CachedCast) -> Tensor:
        """The memory of a kept value; it is filled by the next `refresh`."""
        if kept not in self._buffers:
            parts = [self._parameters[slot] for slot in kept.slots]
            rows = sum(part.shape[0] for part in parts)
            buffer = torch.empty((rows, *parts[0].shape[1:]), dtype=kept.dtype, device=parts[0].device)
            self._buffers[kept] = buffer
            for slot, copy in zip(kept.slots, buffer.split([part.shape[0] for part in parts]), strict=True):
                self._copies.setdefault(slot, []).append(copy)
                self._versions.pop(slot, None)
        return self._buffers[kept]

    @torch.no_grad()
    def refresh(self, *, is_updated: bool) -> None:
        """Before a step: copy what may have been written since the last one. Within an update every write is known."""
        for slot, copies in self._copies.items():
            version = version_of(self._parameters[slot])
            is_suspect = is_updated and slot not in self._written
            if is_suspect or self._versions.get(slot) != version:
                for copy in copies:
                    copy.copy_(self._parameters[slot])
                self._versions[slot] = version
        self._written.clear()

    def place_of(self, slot: str) -> Tensor | None:
        """Where an optimizer may write a parameter's copy by itself: the only one there is, made of its last value."""
        copies = self._copies.get(slot, ())
        is_current = self._versions.get(slot) == version_of(self._parameters[slot])
        return copies[0] if len(copies) == 1 and is_current else None

    def trust(self, slots: list[str]) -> None:
        """These copies were just written along with their parameters."""
        self._versions |= {slot: version_of(self._parameters[slot]) for slot in slots}
        self._written |= set(slots)
