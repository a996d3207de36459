"""Random numbers by seed and position, and dropout with them, in one pass over memory: in Triton.

Every step is the one of the reference on 64-bit integers, so the bits are those of a CPU.
"""

import torch
from torch import Tensor

from monograph.compat.triton import HAS_TRITON, tl, triton
from monograph.kernels.counter_random import (
    FIRST,
    SECOND,
    STEP,
    reference_dropout,
    reference_random_uniform,
    signed,
)
from monograph.kernels.launch import launch

_NUMBERS = 1024
"""Elements per program."""
FACTORS = {"step": signed(STEP), "first": signed(FIRST), "second": signed(SECOND)}
"""Of the hash, for kernels that call it."""


@triton.jit
def mix_bits(bits, shift: tl.constexpr, mask: tl.constexpr, factor: tl.constexpr):
    return (bits ^ ((bits >> shift) & mask)) * factor


@triton.jit
def hash_counters(key, counters, step: tl.constexpr, first: tl.constexpr, second: tl.constexpr):
    key = tl.load(key)
    begin = mix_bits(mix_bits(key * step, 30, 0x3FFFFFFFF, first), 27, 0x1FFFFFFFFF, second)
    twist = mix_bits(begin ^ key, 30, 0x3FFFFFFFF, second)
    bits = mix_bits(counters * step + begin, 30, 0x3FFFFFFFF, first) ^ twist
    return mix_bits(bits, 27, 0x1FFFFFFFFF, second)


@triton.jit
def draw(key, counters, step: tl.constexpr, first: tl.constexpr, second: tl.constexpr):
    bits = (hash_counters(key, counters, step, first, second) >> 40) & 0xFFFFFF
    return bits.to(tl.float32) * 5.9604644775390625e-08  # 2**-24


@triton.jit
def count_elements(starts, index, width, is_in):
    row = index // width
    return tl.load(starts + row, is_in, 0) + (index - row * width)


@triton.jit
def uniform_kernel(
    key,
    starts,
    out,
    width,
    count,
    step: tl.constexpr,
    first: tl.constexpr,
    second: tl.constexpr,
    block: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    is_in = index < count
    number = draw(key, count_elements(starts, index, width, is_in), step, first, second)
    tl.store(out + index, number, is_in)


@triton.jit
def dropout_kernel(
    value,
    key,
    starts,
    out,
    width,
    probability,
    scale,
    count,
    step: tl.constexpr,
    first: tl.constexpr,
    second: tl.constexpr,
    block: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    is_in = index < count
    number = draw(key, count_elements(starts, index, width, is_in), step, first, second)
    x = tl.load(value + index, is_in, 0.0).to(tl.float32)
    tl.store(out + index, tl.where(number >= probability, x * scale, 0.0).to(out.dtype.element_ty), is_in)


def random_uniform(key: Tensor, starts: Tensor, width: int) -> Tensor:
    """Numbers in [0, 1), in fp32."""
    if not HAS_TRITON:
        return reference_random_uniform(key, starts, width).contiguous()
    out = torch.empty((*starts.shape, width), dtype=torch.float32, device=starts.device)
    count = out.numel()
    if count:
        grid = (triton.cdiv(count, _NUMBERS),)
        launch(uniform_kernel, grid, key, starts.contiguous(), out, width, count, block=_NUMBERS, **FACTORS)
    return out


def dropout(value: Tensor, key: Tensor, starts: Tensor, probability: float) -> Tensor:
    """The values that stay, scaled, and zeros."""
    assert value.shape[:-1] == starts.shape, "every row has the position of its first element"
    if not HAS_TRITON or value.dtype == torch.float64:
        return reference_dropout(value, key, starts, probability).contiguous()
    out = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    count, scale = out.numel(), 1.0 / (1.0 - probability)
    if count:
        grid = (triton.cdiv(count, _NUMBERS),)
        tensors = (value.contiguous(), key, starts.contiguous(), out)
        launch(dropout_kernel, grid, *tensors, value.shape[-1], probability, scale, count, block=_NUMBERS, **FACTORS)
    return out
