"""Narrow to wide in one pass over memory, in Triton."""

import torch
from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.launch import launch
from monograph.kernels.rows import check_alike

_NUMBERS = 2048
"""Elements per program."""


@triton.jit
def add_wide_kernel(one, other, out, count, block: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    is_in = index < count
    a = tl.load(one + index, is_in).to(tl.float32)
    b = tl.load(other + index, is_in).to(tl.float32)
    tl.store(out + index, a + b, is_in)


def add_wide(one: Tensor, other: Tensor) -> Tensor:
    """one + other in fp32."""
    check_alike(one, other)
    out = torch.empty(one.shape, dtype=torch.float32, device=one.device)
    count = out.numel()
    if count:
        grid = (triton.cdiv(count, _NUMBERS),)
        launch(add_wide_kernel, grid, one.contiguous(), other.contiguous(), out, count, block=_NUMBERS)
    return out
