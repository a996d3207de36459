"""Stochastic rounding from fp32 to bf16, with bits that depend on a key and an element's position alone.

A value between two bf16 numbers becomes the upper one with the probability of its distance from the lower one, so the
expected result is the value itself. Round-to-nearest instead drops every change of less than half a step: an average
that moves slowly stays where it is.
"""

import torch
from torch import Tensor

from monograph.kernels.counter_random import count_elements, hash_counters

LOW_BITS = 16
"""Of an fp32 number that bf16 has no room for."""


def draw_rounding_bits(key: Tensor, starts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Two independent 16-bit numbers for each of `count` elements: one hash is enough for AdamW's two moments.

    `starts` has the position of the first element of each row in the whole tensor, and rows are equally long.
    """
    bits = hash_counters(key, count_elements(starts, count // starts.numel())).view(-1)
    return (bits >> 48) & 0xFFFF, (bits >> 32) & 0xFFFF


def reference_stochastic_round(value: Tensor, bits: Tensor) -> Tensor:
    """An fp32 value in bf16: the random bits are added below bf16's last bit, and what is left there is cut off.

    Numbers that bf16 has, zero and infinities among them, stay as they are; NaN stays NaN.
    """
    moved = (value.view(torch.int32) + bits.to(torch.int32)) & -(1 << LOW_BITS)
    return torch.where(value == value, moved.view(torch.float32), value).to(torch.bfloat16)
