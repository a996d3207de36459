"""Weights as modules compute with them, cast from one update to the next (pass cache_cast_weights)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from monograph.compat.modules import version_of
from monograph.graph.cast_weights import CachedCast


class CastWeightCache:
    """Copies of parameters in the compute dtype, at addresses that never change, shared by all programs of a step.

    They are cast again after every update, except those that the optimizer wrote itself. Weights that something else
    changes, such as loading a checkpoint, are noticed by torch's version counters. Copies in float8 are made from the
    copies in the compute dtype, or from casts that last as long as that takes where nothing else reads them.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._buffers: dict[CachedCast, Tensor] = {}
        self._copies: dict[str, list[Tensor]] = {}
        self._float8: dict[CachedCast, tuple[Tensor, ...]] = {}
        """Cast, without saying which result -> all results."""
        self._versions: dict[str, int] = {}
        self._written: set[str] = set()
        """By the optimizer since the last refresh."""

    def get(self, cast: CachedCast) -> Tensor:
        """The buffer of a cast weight; the next `refresh` fills it."""
        if cast.float8 is not None:
            return self._get_float8(cast)
        if cast not in self._buffers:
            parts = [self._parameters[slot] for slot in cast.slots]
            rows = sum(part.shape[0] for part in parts)
            buffer = torch.empty((rows, *parts[0].shape[1:]), dtype=cast.dtype, device=parts[0].device)
            self._buffers[cast] = buffer
            for slot, copy in zip(cast.slots, buffer.split([part.shape[0] for part in parts]), strict=True):
                self._copies.setdefault(slot, []).append(copy)
                self._versions.pop(slot, None)
        return self._buffers[cast]

    @torch.no_grad()
    def _get_float8(self, cast: CachedCast) -> Tensor:
        assert cast.float8 is not None and cast.float8.result is not None, "a cast to float8 has several results"
        whole = cast._replace(float8=cast.float8._replace(result=None))
        if whole not in self._float8:
            self._float8[whole] = tuple(map(torch.empty_like, self._cast_float8(whole)))
            for slot in cast.slots:
                self._versions.pop(slot, None)
        return self._float8[whole][cast.float8.result]

    def _cast_float8(self, cast: CachedCast) -> tuple[Tensor, ...]:
        assert cast.float8 is not None
        wide = self._buffers.get(cast._replace(float8=None))
        if wide is None:
            parts = [self._parameters[slot].to(cast.dtype) for slot in cast.slots]
            wide = parts[0] if len(parts) == 1 else torch.cat(parts)
        results: tuple[Tensor, ...] = cast.float8.target(wide, *cast.float8.args)
        return results

    @torch.no_grad()
    def refresh(self, *, is_updated: bool) -> None:
        """Before a step: cast again what was written since the last one.

        Between the micro-batches of an update the version counters tell; after an update every weight is cast again
        unless the optimizer wrote the copy itself.
        """
        changed = set()
        for slot in self._copies.keys() | {slot for cast in self._float8 for slot in cast.slots}:
            version = version_of(self._parameters[slot])
            if is_updated or self._versions.get(slot) != version:
                changed.add(slot)
            is_suspect = is_updated and slot not in self._written
            if is_suspect or self._versions.get(slot) != version:
                for copy in self._copies.get(slot, ()):
                    copy.copy_(self._parameters[slot])
                self._versions[slot] = version
        for cast, buffers in self._float8.items():
            if not changed.isdisjoint(cast.slots):
                for buffer, value in zip(buffers, self._cast_float8(cast), strict=True):
                    buffer.copy_(value)
        self._written.clear()

    def find_copy(self, slot: str) -> Tensor | None:
        """The copy that an optimizer may write with its parameter: one that is up to date, and the only one."""
        copies = self._copies.get(slot, ())
        is_current = self._versions.get(slot) == version_of(self._parameters[slot])
        return copies[0] if len(copies) == 1 and is_current else None

    def trust(self, slots: list[str]) -> None:
        """These copies were just written along with their parameters."""
        self._versions |= {slot: version_of(self._parameters[slot]) for slot in slots}
        self._written |= set(slots)
