"""RMS norm with its result in float8, for matmuls that read nothing else. For fuse_float8_casts.

The result is a matrix in e4m3 with scales of its rows: whatever dims come before the last are one. The largest
magnitude of every column comes with it: backward computes the norm again and casts it transposed.
"""

import math

import torch
from torch import Tensor

from monograph.kernels import float8_norm_on_gpu
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor
from monograph.kernels.float8_amax import reference_float8_cast_amax
from monograph.kernels.float8_swiglu import E4M3, as_matrix, fake_float8
from monograph.kernels.norm import reference_add_norm, reference_norm

_Norm = tuple[Tensor, Tensor, Tensor, Tensor]


def reference_float8_norm(x: Tensor, weight: Tensor, eps: float) -> _Norm:
    """Numbers, scales, the largest magnitude of every column, and one over the root mean square of every row."""
    out, rstd = reference_norm(x, weight, eps)
    return *reference_float8_cast_amax(as_matrix(out), E4M3), rstd


def reference_float8_add_norm(x: Tensor, other: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, *_Norm]:
    """A sum, and the same of it."""
    total, out, rstd = reference_add_norm(x, other, weight, eps)
    return total, *reference_float8_cast_amax(as_matrix(out), E4M3), rstd


def _fake_norm(x: Tensor, weight: Tensor, eps: float) -> _Norm:
    amax = x.new_empty(x.shape[-1:], dtype=torch.float32)
    rstd = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    return *fake_float8(x, math.prod(x.shape[:-1]), x.shape[-1]), amax, rstd


def _make_examples() -> list[tuple[Tensor, Tensor, Tensor, float]]:
    """Two addends in bfloat16, a weight and eps. Sums are 2 or -2, so that what is rounded to bfloat16 is near to the
    weight's own numbers, and the same on every device."""
    signs, weight = example_tensor(3, 7, 48, seed=1).sign().bfloat16(), example_tensor(48, dtype=torch.bfloat16)
    return [(3 * signs, -signs, weight, 0.0)]


FLOAT8_NORM = custom_op(
    "float8_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
    reference=reference_float8_norm,
    kernel=float8_norm_on_gpu.float8_norm,
    fake=_fake_norm,
    examples=lambda: [(x, weight, eps) for x, _, weight, eps in _make_examples()],
    prebuild=True,
).op
FLOAT8_ADD_NORM = custom_op(
    "float8_add_norm(Tensor x, Tensor other, Tensor weight, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference=reference_float8_add_norm,
    kernel=float8_norm_on_gpu.float8_add_norm,
    fake=lambda x, other, weight, eps: (x.new_empty(x.shape), *_fake_norm(x, weight, eps)),
    examples=_make_examples,
    prebuild=True,
).op
