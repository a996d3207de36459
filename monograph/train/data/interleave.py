"""The order in which samples are taken from several readers: computed for any sample, kept nowhere.

Sample n belongs to the reader whose share of [0, 1) holds the fractional part of n times a stride, moved by the seed.
For a mixture the stride is the golden ratio: its points are spread so evenly that every stretch of samples has the
sources in the proportion of their weights, up to a few samples. They are computed in whole numbers, so that how many
earlier samples a reader has had is a sum that takes a hundred operations, however far the run is: any position can be
continued from, by any number of data-parallel parts.
"""

import itertools
from collections.abc import Sequence
from fractions import Fraction

MODULUS = 1 << 64
GOLDEN_STRIDE = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio; odd, so that the points repeat only after 2**64 samples."""


class Interleaving:
    """The order in which samples are taken from sources with these weights."""

    def __init__(self, weights: Sequence[float], seed: int, *, stride: int = GOLDEN_STRIDE) -> None:
        ends = list(itertools.accumulate(Fraction(weight) for weight in weights))
        self._bounds = [0, *(int(end / ends[-1] * MODULUS) for end in ends)]
        self._offset, self._stride = seed % MODULUS, stride

    def find_source(self, number: int) -> int:
        """The source of sample `number`, counted from 0 through all sources."""
        point = (number * self._stride + self._offset) % MODULUS
        return next(source for source, end in enumerate(self._bounds[1:]) if point < end)

    def count(self, number: int, source: int) -> int:
        """How many of the samples before `number` come from a source: the index of its next one."""
        below = [self._count_below(number, self._bounds[source + step]) for step in (0, 1)]
        return below[1] - below[0]

    def _count_below(self, number: int, bound: int) -> int:
        """How many of the first `number` points lie below a bound: [x mod M < b] is floor(x/M) - floor((x-b)/M)."""
        first = floor_sum(number, MODULUS, self._stride, self._offset)
        return first - floor_sum(number, MODULUS, self._stride, self._offset - bound + MODULUS) + number


def floor_sum(count: int, modulus: int, stride: int, offset: int) -> int:
    """The sum of floor((stride * i + offset) / modulus) for i below `count`, by Euclid's algorithm."""
    total = 0
    while count:
        total += (count - 1) * count // 2 * (stride // modulus) + count * (offset // modulus)
        stride, offset = stride % modulus, offset % modulus
        last = stride * count + offset
        if last < modulus:
            break
        count, offset = last // modulus, last % modulus
        modulus, stride = stride, modulus
    return total
