"""Sums of narrow values in fp32, without writing the values themselves in fp32 first.

A tied embedding has two gradients, each as large as the vocabulary: casting both and adding them moves three times the
memory. The pass fuse_kernels puts this op into graphs; casting is exact, so it changes no bit.
"""

import torch
from torch import Tensor

from monograph.kernels import wide_on_gpu
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor


def reference_add_wide(one: Tensor, other: Tensor) -> Tensor:
    """one + other in fp32."""
    return one.float() + other.float()


ADD_WIDE = custom_op(
    "add_wide(Tensor one, Tensor other) -> Tensor",
    reference=reference_add_wide,
    kernel=wide_on_gpu.add_wide,
    fake=lambda one, other: one.new_empty(one.shape, dtype=torch.float32),
    examples=lambda: [(example_tensor(30, 7, dtype=torch.bfloat16), example_tensor(30, 7, seed=1))],
    decompose=True,
    prebuild=True,
).op
