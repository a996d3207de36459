"""An fp32 master weight as the bf16 weight that modules compute with and the 16 bits that this one lacks.

The bf16 weight is the master rounded to nearest (ties away from zero), and the remainder is what has to be added to its
bits, read as an integer, to get the master's: no bit is lost, and nothing is stored twice. What is not a number has
many bit patterns, and becomes one of them: rounding up a GPU's (all ones) would overflow and make it zero.
"""

import torch
from torch import Tensor

LOW_BITS = 16
HALF = 1 << (LOW_BITS - 1)
NAN_BITS = 0x7FC00000
"""Of the NaN that every other one is stored as."""


def combine_master(weight: Tensor, remainder: Tensor) -> Tensor:
    """The fp32 master of a bf16 weight."""
    bits = (weight.view(torch.int16).to(torch.int32) << LOW_BITS) + remainder.to(torch.int32)
    return bits.view(torch.float32)


def split_master(master: Tensor) -> tuple[Tensor, Tensor]:
    """The bf16 weight and the remainder of an fp32 master."""
    bits = torch.where(master == master, master.view(torch.int32), NAN_BITS)
    high = (bits + HALF) >> LOW_BITS
    return high.to(torch.int16).view(torch.bfloat16), (bits - (high << LOW_BITS)).to(torch.int16)
