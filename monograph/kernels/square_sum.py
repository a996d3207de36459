"""The sum of the squares of many tensors: what a gradient norm is made of. Every number is read once.

torch's norms of a model's gradients reach half of a GPU's memory speed. Our kernel's result depends on the values
alone: gradients of one step may come in bf16 or fp32, and from anywhere within a larger buffer.
"""

import importlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from monograph.kernels.choose import HAS_TRITON, SERVED

LARGE_NUMEL = 1 << 20
"""Tensors of this size keep a GPU's memory busy on their own."""


def square_sum(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """The sum of all squares, in fp32, on the device of the tensors (of no tensors: on `device`)."""
    if tensors and HAS_TRITON and all(each.is_cuda and each.dtype in SERVED for each in tensors):
        return importlib.import_module("monograph.kernels.square_sum_on_gpu").square_sum(tensors)
    return plain_square_sum(tensors, device)


def plain_square_sum(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """The same in torch's ops. Small tensors are read by one kernel, large ones by one each: the kernel that takes
    many does not reach a third of the memory's speed."""
    small = [tensor.float() for tensor in tensors if tensor.numel() < LARGE_NUMEL]
    norms = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in tensors if each.numel() >= LARGE_NUMEL]
    if small:
        norms.append(get_total_norm(small))
    return torch.stack(norms).square().sum() if norms else torch.zeros((), device=device)
