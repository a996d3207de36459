"""The part of every sequence that one rank has: with context parallelism, two slices of it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SequencePart:
    """Part `index` of `count`. A sequence is divided into 2 x count slices, and a part is slice `index` from the front
    and slice `index` from the back: with causal attention all parts cost the same. One part of one is the whole."""

    index: int = 0
    count: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole sequence."""
        return self.count == 1

    def bounds(self, length: int) -> list[tuple[int, int]]:
        """Start and stop of its slices in a sequence of this length, which 2 x count divides."""
        if self.is_whole:
            return [(0, length)]
        size = length // (2 * self.count)
        numbers = (self.index, 2 * self.count - 1 - self.index)
        return [(number * size, (number + 1) * size) for number in numbers]

    def take(self, value: Tensor, dim: int | None) -> Tensor:
        """This part of a tensor whose `dim` is the sequence; all of a tensor that has none."""
        if self.is_whole or dim is None:
            return value
        return torch.cat([value.narrow(dim, start, stop - start) for start, stop in self.bounds(value.shape[dim])], dim)


WHOLE = SequencePart()
