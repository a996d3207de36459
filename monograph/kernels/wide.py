"""Sums of narrow values in fp32, without writing the values themselves in fp32 first.

A tied embedding has two gradients, each as large as the vocabulary: casting both and adding them moves three times the
memory. The pass fuse_kernels puts this op into graphs; casting is exact, so it changes no bit.
"""

import torch
from torch import Tensor

from monograph.kernels import wide_on_gpu

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define("add_wide(Tensor one, Tensor other) -> Tensor")


def reference_add_wide(one: Tensor, other: Tensor) -> Tensor:
    """one + other in fp32."""
    return one.float() + other.float()


@torch.library.impl(_LIBRARY, "add_wide", "CPU")
def _add_wide_on_cpu(one: Tensor, other: Tensor) -> Tensor:
    return reference_add_wide(one, other).contiguous()


@torch.library.impl(_LIBRARY, "add_wide", "CUDA")
def _add_wide_on_cuda(one: Tensor, other: Tensor) -> Tensor:
    return wide_on_gpu.add_wide(one, other)


@torch.library.register_fake("monograph::add_wide", lib=_LIBRARY)
def _add_wide_shape(one: Tensor, other: Tensor) -> Tensor:
    return one.new_empty(one.shape, dtype=torch.float32)


ADD_WIDE = torch.ops.monograph.add_wide.default
