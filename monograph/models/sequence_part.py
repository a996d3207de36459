"""The part of every sequence that one rank has: with context parallelism, one or two slices of it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SequencePart:
    """Part `index` of `count`. One part of one is the whole.

    A sequence is divided into 2 x count slices, and a part is slice `index` from the front and slice `index` from the
    back: with causal attention all parts cost the same. With Ulysses every rank attends to whole sequences, and a part
    is one slice.
    """

    index: int = 0
    count: int = 1
    is_ulysses: bool = False
    """Whether attention exchanges tokens for heads by all_to_all: its queries are then those of the whole sequence."""

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole sequence."""
        return self.count == 1

    @property
    def attended(self) -> "SequencePart":
        """The part whose queries this rank's attention gets."""
        return WHOLE if self.is_ulysses else self

    def bounds(self, length: int) -> list[tuple[int, int]]:
        """Start and stop of its slices in a sequence of this length, which the number of all slices divides."""
        if self.is_whole:
            return [(0, length)]
        numbers = (self.index,) if self.is_ulysses else (self.index, 2 * self.count - 1 - self.index)
        size = length // (self.count * len(numbers))
        return [(number * size, (number + 1) * size) for number in numbers]

    def take(self, value: Tensor, dim: int | None) -> Tensor:
        """This part of a tensor whose `dim` is the sequence; all of a tensor that has none."""
        if self.is_whole or dim is None:
            return value
        return torch.cat([value.narrow(dim, start, stop - start) for start, stop in self.bounds(value.shape[dim])], dim)

    def put(self, value: Tensor, into: Tensor, dim: int) -> None:
        """Write a tensor that has this part of a sequence along `dim` into one that has all of it."""
        bounds = self.bounds(into.shape[dim])
        for (start, stop), piece in zip(bounds, value.chunk(len(bounds), dim), strict=True):
            into.narrow(dim, start, stop - start).copy_(piece)


WHOLE = SequencePart()
