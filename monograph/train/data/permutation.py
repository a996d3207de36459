"""A permutation of n things that is computed, not stored, and that will be the same in ten years.

Resuming a run replays the order of its data, perhaps with a newer numpy on another machine, and library shuffles do not
promise to stay as they are. So the order is our own arithmetic on 64-bit integers: a Feistel network, which is
a bijection whatever its mixing function does, on the next power of two, walked until the value falls below n.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np

ROUNDS = 6
MIN_BITS = 6
"""Narrower networks cannot reach every order of a few things."""


def find_seed(*parts: object) -> int:
    """64 bits derived from what they are for; other parts give unrelated bits."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def mix(values: np.ndarray, seed: int) -> np.ndarray:
    """Spread every input bit over all 64 output bits (the finalizer of splitmix64)."""
    mixed = values + np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Permutation:
    """A bijection of 0..size-1, decided by the seed."""

    size: int
    seed: int
    low_bits: int = field(init=False)
    high_bits: int = field(init=False)

    def __post_init__(self) -> None:
        bits = max(MIN_BITS, (self.size - 1).bit_length())
        object.__setattr__(self, "low_bits", bits // 2)
        object.__setattr__(self, "high_bits", bits - bits // 2)

    def apply(self, indices: np.ndarray) -> np.ndarray:
        """Where each index goes, as int64. Values outside the range are sent round again until they fall inside."""
        values = self._round_trip(indices.astype(np.uint64))
        outside = np.flatnonzero(values >= self.size)
        while outside.size:
            values[outside] = self._round_trip(values[outside])
            outside = outside[values[outside] >= self.size]
        return values.astype(np.int64)

    def _round_trip(self, values: np.ndarray) -> np.ndarray:
        low_bits = np.uint64(self.low_bits)
        low_mask, high_mask = (np.uint64((1 << bits) - 1) for bits in (self.low_bits, self.high_bits))
        low, high = values & low_mask, values >> low_bits
        for number in range(ROUNDS):
            seed = find_round_seed(self.seed, number)
            if number % 2:
                low = low ^ (mix(high, seed) & low_mask)
            else:
                high = high ^ (mix(low, seed) & high_mask)
        return (high << low_bits) | low


def find_round_seed(seed: int, number: int) -> int:
    """A different constant for each round: the seed moved on by the golden ratio."""
    return (seed + (number + 1) * 0x9E3779B97F4A7C15) % (1 << 64)
