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
    return add_square_parts(square_parts(tensors, device))


def square_parts(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Partial sums of the squares, fp32 [parts], in the order of the tensors.

    Parts of a tensor do not depend on the tensors around it: ranks that have some of a model's gradients each compute
    the parts of theirs, and the sum over all parts has the bits of one rank that has them all.
    """
    if tensors and all(map(_has_kernel, tensors)):
        return square_sum_on_gpu.square_parts(tensors)
    return reference_square_parts(tensors, device)


def count_square_parts(size: int, like: Tensor) -> int:
    """How many parts a tensor of so many elements has, of the dtype and on the device of another one."""
    return square_sum_on_gpu.count_parts(size) if _has_kernel(like) else 1


def _has_kernel(tensor: Tensor) -> bool:
    return HAS_TRITON and tensor.is_cuda and tensor.dtype in SERVED


def add_square_parts(parts: Tensor) -> Tensor:
    """Their sum, fp32. On a GPU there are some ten thousand: added in fp64, which is free at this size."""
    return parts.sum(dtype=torch.float64).float() if HAS_TRITON and parts.is_cuda else parts.sum()


def reference_square_parts(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """The same in torch's ops, a part for each tensor. A sum is added pairwise; torch's vector_norm is not on some
    CPUs, and off by 1e-3 there for eight million elements."""
    if not tensors:
        return torch.zeros(0, device=device)
    return torch.stack([each.float().square().sum() for each in tensors])


def reference_square_sum(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """The sum of all squares in torch's ops."""
    return reference_square_parts(tensors, device).sum()
