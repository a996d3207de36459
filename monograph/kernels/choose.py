"""Fused kernels or plain ops: who computes what torch has no kernel for."""

import torch
from torch import Tensor

from monograph.compat.triton import HAS_TRITON

SERVED = (torch.bfloat16, torch.float16, torch.float32)
"""The dtypes that the kernels read and write; they compute in fp32."""


def is_fused(kernels: str, value: Tensor) -> bool:
    """Whether a value goes to an op of ours, which is one node of a graph and on a GPU one kernel.

    `auto` does so on GPUs only: on a CPU there is nothing to gain, and plain ops are what a compiler there fuses.
    """
    if kernels == "auto":
        return value.is_cuda and value.dtype in SERVED and HAS_TRITON
    return kernels == "fused"
