"""The sum of the squares of many tensors: what a gradient norm is made of. Every number is read once.

torch's norms of a model's gradients reach half of a GPU's memory speed. Our kernel's result depends on the values
alone: gradients of one step may come in bf16 or fp32, and from anywhere within a larger buffer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from monograph.compat.triton import HAS_TRITON
from monograph.kernels import square_sum_on_gpu
from monograph.kernels.choose import SERVED


def square_sum(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """The sum of all squares, in fp32, on the device of the tensors (of no tensors: on `device`)."""
    if tensors and HAS_TRITON and all(each.is_cuda and each.dtype in SERVED for each in tensors):
        return square_sum_on_gpu.square_sum(tensors)
    return reference_square_sum(tensors, device)


def reference_square_sum(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """The same in torch's ops. A sum is added pairwise; torch's vector_norm is not on some CPUs, and off by 1e-3 there
    for eight million elements."""
    if not tensors:
        return torch.zeros((), device=device)
    return torch.stack([each.float().square().sum() for each in tensors]).sum()
