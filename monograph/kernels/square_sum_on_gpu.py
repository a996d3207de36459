"""The kernel of sums of squares, in Triton."""

from collections.abc import Sequence

import torch
from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.launch import launch

_LANES = 1024
"""Sums that a program keeps side by side: eight a thread, which reads 16 bytes at a time in bf16 too."""
_LEVELS = 10
"""How often they are halved until one is left."""
_TOGETHER = 4
"""Numbers of each lane on their way at the same time."""
_ROUNDS = 2
_CHUNK = _LANES * _TOGETHER * _ROUNDS
"""Numbers that one program sums: a matrix of four million keeps every processor of a large GPU busy four times."""


@triton.jit(do_not_specialize=["first", "count"])
def square_sum_kernel(
    values,
    sums,
    first,
    count,
    lanes: tl.constexpr,
    levels: tl.constexpr,
    together: tl.constexpr,
    rounds: tl.constexpr,
):
    """One chunk. Which numbers are added in which order is written out: `tl.sum` of a row would do it by the layout
    in registers, which depends on dtype and alignment. The sum of a pair does not."""
    start = tl.program_id(0).to(tl.int64) * (lanes * together * rounds)
    index = start + tl.arange(0, lanes)
    total = tl.zeros([lanes], tl.float32)
    if start + lanes * together * rounds <= count:  # no masks: with them reads are as narrow as `count` is odd
        for _ in range(rounds):
            for step in tl.static_range(together):
                x = tl.load(values + index + step * lanes).to(tl.float32)
                total = tl.fma(x, x, total)
            index += together * lanes
    else:
        for _ in range(rounds):
            for step in tl.static_range(together):
                x = tl.load(values + index + step * lanes, index + step * lanes < count, 0.0).to(tl.float32)
                total = tl.fma(x, x, total)
            index += together * lanes
    for level in tl.static_range(levels):
        total = tl.sum(tl.reshape(total, (lanes >> (level + 1), 2)), 1)
    tl.store(sums + first + tl.program_id(0) + tl.arange(0, 1), total)


def count_parts(size: int) -> int:
    """How many sums a tensor of so many elements has."""
    return int(triton.cdiv(size, _CHUNK))


def square_parts(tensors: Sequence[Tensor]) -> Tensor:
    """The sums of squares of all chunks, tensor by tensor. No atomics: the same bits every time."""
    chunks = [count_parts(each.numel()) for each in tensors]
    sums = torch.empty(sum(chunks), dtype=torch.float32, device=tensors[0].device)
    settings = {"lanes": _LANES, "levels": _LEVELS, "together": _TOGETHER, "rounds": _ROUNDS, "num_warps": 4}
    first = 0
    for tensor, programs in zip(tensors, chunks, strict=True):
        if programs:
            launch(square_sum_kernel, (programs,), tensor.contiguous(), sums, first, tensor.numel(), **settings)
        first += programs
    return sums
