"""Random bits that depend on a counter and keys alone: the mixing of SplitMix64, in torch's 64-bit integers.

Integers wrap around in the same way on every device, so the same counter has the same bits everywhere.
"""

import hashlib

from torch import Tensor

STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64: the distance of neighbours, and the factors of the two rounds."""


def signed(number: int) -> int:
    """The 64 lowest bits as torch's integers hold them, which wrap around."""
    low = number & ((1 << 64) - 1)
    return low - (1 << 64) if low >> 63 else low


def mix(bits: Tensor, shift: int, factor: int) -> Tensor:
    """One round: xor with the higher bits, then multiply; the sign is a bit like any other."""
    return (bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))) * signed(factor)


def stream_of(name: str) -> int:
    """The number of a stream of random numbers, from its name: positive, and below 2**63."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1 or 1


def reference_random_uniform(seed: Tensor, positions: Tensor, stream: int) -> Tensor:
    """A number in [0, 1) for every position: 24 bits of a hash of seed, stream and position, in fp32.

    Seed and stream are mixed into two keys: where the counters begin, and what tells streams that begin nearby apart.
    """
    begin = mix(mix(seed * signed(STEP) + stream, 30, FIRST), 27, SECOND)
    twist = mix(begin ^ stream, 30, SECOND)
    bits = mix(positions * signed(STEP) + begin, 30, FIRST) ^ twist
    return ((mix(bits, 27, SECOND) >> 40) & 0xFFFFFF).float() * 2.0**-24


def reference_dropout(value: Tensor, seed: Tensor, positions: Tensor, probability: float, stream: int) -> Tensor:
    """Zero where the number at a position is below the probability, all else divided by what is left of one."""
    is_kept = reference_random_uniform(seed, positions, stream) >= probability
    return (value * (1.0 / (1.0 - probability))).where(is_kept, 0.0)
