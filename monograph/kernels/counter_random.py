"""Random bits that depend on a key and a counter alone: the mixing of SplitMix64, in torch's 64-bit integers.

Integers wrap around in the same way on every device, so the same counter has the same bits everywhere.
"""

import hashlib

import torch
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


def count_elements(starts: Tensor, width: int) -> Tensor:
    """The counter of every element of rows of this width, from the counter of each row's first element."""
    return starts.unsqueeze(-1) + torch.arange(width, device=starts.device)


def hash_counters(key: Tensor, counters: Tensor) -> Tensor:
    """64 bits for every counter, the higher ones mixed best.

    The key is mixed into two: where the counters begin, and what tells keys whose counters begin nearby apart.
    """
    begin = mix(mix(key * signed(STEP), 30, FIRST), 27, SECOND)
    twist = mix(begin ^ key, 30, SECOND)
    return mix(mix(counters * signed(STEP) + begin, 30, FIRST) ^ twist, 27, SECOND)


def reference_random_uniform(key: Tensor, starts: Tensor, width: int) -> Tensor:
    """A number in [0, 1) for every element: 24 bits of a hash of its key and counter, in fp32."""
    return ((hash_counters(key, count_elements(starts, width)) >> 40) & 0xFFFFFF).float() * 2.0**-24


def reference_dropout(value: Tensor, key: Tensor, starts: Tensor, probability: float) -> Tensor:
    """Zero where an element's number is below the probability, all else divided by what is left of one."""
    is_kept = reference_random_uniform(key, starts, value.shape[-1]) >= probability
    return (value * (1.0 / (1.0 - probability))).where(is_kept, 0.0)
