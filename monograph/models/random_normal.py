"""Random numbers that depend on where they stand and on nothing else: not on the device, the sharding, the threads.

The number at a place of a parameter is computed from that place, the parameter's name and the seed: 64 bits are mixed
(the mixing of SplitMix64), 25 of them become a fraction between -1 and 1, and that goes through the inverse of the
normal distribution, cut at three standard deviations. Only operations that IEEE 754 rounds in one way are used, each as
an op of its own, so that a GPU draws the bits that a CPU draws; compiled together, a product and a sum might be rounded
once. torch's own generators differ by device, and have to be run from the beginning.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from monograph.kernels.counter_random import FIRST, SECOND, STEP, signed

CUT = 3.0
"""No value lies further than this many standard deviations from zero."""
AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 22}
"""Values drawn by one round of ops: on a CPU what its caches hold, on a GPU enough to keep it busy."""
_ABOVE = (
    0.4987385869026184,
    3.5555200576782227,
    2.254098653793335,
    0.261205792427063,
    0.006764946971088648,
    3.872584056807682e-05,
)
_BELOW = (1.0, 2.90968918800354, 1.236744999885559, 0.11243727058172226, 0.0024904266465455294, 1.2908641110698227e-05)
"""The number of standard deviations within which a share v of all values lies is v times the quotient of these
polynomials of 1 - v * v, highest power first: off by less than three millionths of itself. No coefficient is negative,
so that nothing cancels."""


def find_counter_keys(seed: int, name: str) -> tuple[int, int]:
    """Where a parameter's places begin among the 64-bit numbers, and what tells it from one that begins nearby."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return signed(int.from_bytes(digest[:8], "big")), signed(int.from_bytes(digest[8:16], "big"))


@torch.no_grad()
def draw(target: Tensor, seed: int, name: str, *, width: int, std: float, row: int = 0, column: int = 0) -> None:
    """Fill `target`: rows and columns, from these on, of a parameter whose rows have this width."""
    device, (height, columns) = target.device, target.shape
    begin, twist = find_counter_keys(seed, name)
    across = torch.arange(column, column + columns, device=device) * signed(STEP) + begin
    rows = max(1, AT_ONCE.get(device.type, AT_ONCE["cpu"]) // max(1, columns))
    for first in range(0, height, rows):
        last = min(height, first + rows)
        down = torch.arange(row + first, row + last, device=device) * signed(width * STEP)
        target[first:last] = to_normal(to_fractions(down.unsqueeze(1) + across, twist)).mul_(std)


def to_fractions(indices: Tensor, twist: int) -> Tensor:
    """64-bit numbers, which are written over, as odd multiples of 2**-24 between -1 and 1, in fp32."""
    _mix(indices, 30, FIRST)
    indices ^= twist
    _mix(indices, 27, SECOND)
    return (indices >> 39).bitwise_or_(1).to(torch.float32).mul_(2.0**-24)


def _mix(indices: Tensor, shift: int, factor: int) -> None:
    """One round, in place; the sign is a bit like any other."""
    indices ^= (indices >> shift).bitwise_and_((1 << (64 - shift)) - 1)
    indices *= signed(factor)


def to_normal(fractions: Tensor) -> Tensor:
    """How many standard deviations from zero: for fractions spread evenly, a normal distribution cut at CUT."""
    rest = (fractions * fractions).neg_().add_(1.0)
    return _evaluate(_ABOVE, rest).div_(_evaluate(_BELOW, rest)).mul_(fractions)


def _evaluate(coefficients: Sequence[float], x: Tensor) -> Tensor:
    first, second, *others = coefficients
    result = (x * first).add_(second)
    for each in others:
        result.mul_(x).add_(each)
    return result
