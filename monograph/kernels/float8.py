"""Casts to float8 with scales, and matmuls of what they yield. The pass quantize_matmuls puts these into graphs.

A float8 value is a pair: numbers in float8 and fp32 scales, of which the products are close to what was cast. Scales
are dynamic: the largest magnitude of a row (rowwise) or of the whole tensor (tensorwise) becomes the largest number of
the dtype. Matmuls read both operands along the contraction, so every operand is a matrix whose rows are contracted:
what a matmul contracts the other way is cast transposed. One kernel writes both layouts where both are read.
"""

import torch
from torch import Tensor

from monograph.compat.float8 import scaled_mm
from monograph.kernels import float8_on_gpu
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor

SMALLEST = 1e-12
"""What a largest magnitude counts as at least, so that zeros have a scale."""
Float8 = tuple[Tensor, Tensor]
"""Numbers and scales."""
Float8Pair = tuple[Tensor, Tensor, Tensor, Tensor]
"""Numbers and scales as they are, then transposed."""


def reference_float8_cast(x: Tensor, dtype: torch.dtype, is_rowwise: bool, is_transposed: bool) -> Float8:
    """x, or its last two dims transposed, in float8; scales [..., rows, 1], or [1, 1] for the whole tensor.

    fp32 is rounded to bfloat16 first, so that a cast may read a value itself or its bfloat16 copy. Both divisions are
    of tensors: torch divides a number by a tensor, and on a GPU a tensor by a number, by multiplying with a reciprocal,
    which rounds twice.
    """
    assert x.dim() > 1, "what is cast is a matrix, or a stack of them"
    wide = (x.mT if is_transposed else x).bfloat16().float()
    if not wide.numel():
        shape = (*wide.shape[:-1], 1) if is_rowwise else (1, 1)
        return wide.to(dtype), wide.new_zeros(shape)
    amax = wide.abs().amax(-1, keepdim=True) if is_rowwise else wide.abs().amax().view(1, 1)
    return scale_by(wide, amax, dtype)


def scale_by(wide: Tensor, amax: Tensor, dtype: torch.dtype) -> Float8:
    """Numbers and scales of fp32 values whose largest magnitudes are known."""
    amax = amax.clamp(min=SMALLEST)
    limit = torch.finfo(dtype).max
    largest = torch.full_like(amax, limit)
    return (wide * (largest / amax)).clamp(-limit, limit).to(dtype), amax / largest


def reference_float8_cast_both(x: Tensor, dtype: torch.dtype, is_rowwise: bool) -> Float8Pair:
    """x in float8 as it is, and transposed."""
    one, other = (reference_float8_cast(x, dtype, is_rowwise, is_transposed) for is_transposed in (False, True))
    return *one, *other


def reference_float8_matmul(
    left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, is_fast: bool
) -> Tensor:
    """left [m, k] times right [n, k] transposed, in bfloat16."""
    return scaled_mm(left, right, left_scale, right_scale, is_fast=is_fast)


def fake_float8_cast(x: Tensor, dtype: torch.dtype, is_rowwise: bool, is_transposed: bool) -> Float8:
    """What a cast returns, without values."""
    *batch, rows, columns = x.shape
    if is_transposed:
        rows, columns = columns, rows
    shape = (*batch, rows, 1) if is_rowwise else (1, 1)
    return x.new_empty((*batch, rows, columns), dtype=dtype), x.new_empty(shape, dtype=torch.float32)


def _fake_cast_both(x: Tensor, dtype: torch.dtype, is_rowwise: bool) -> Float8Pair:
    return *fake_float8_cast(x, dtype, is_rowwise, False), *fake_float8_cast(x, dtype, is_rowwise, True)


def make_float8_examples() -> list[Tensor]:
    """Rows of zeros, an odd number of columns, a part of a wider matrix, stacks of matrices, and fp32."""
    whole = example_tensor(70, 96, dtype=torch.bfloat16)
    whole[3] = 0
    stack = example_tensor(3, 40, 24, dtype=torch.bfloat16, seed=1)
    wide = example_tensor(2, 48, 80, dtype=torch.float32, seed=2)
    return [whole, whole[:, 16:51], stack, wide, wide.unflatten(1, (4, 12))]


def _make_cast_examples() -> list[tuple[Tensor, torch.dtype, bool, bool]]:
    dtypes = (torch.float8_e4m3fn, torch.float8_e5m2)
    choices = [(True, False), (True, True), (False, False), (False, True)]
    return [(x, dtypes[i % 2], *choice) for i, x in enumerate(make_float8_examples()) for choice in choices]


def _make_matmul_examples() -> list[tuple[Tensor, Tensor, Tensor, Tensor, bool]]:
    values = example_tensor(32, 64, dtype=torch.bfloat16), example_tensor(48, 64, dtype=torch.bfloat16, seed=1)
    found = []
    for is_rowwise in (True, False):
        (left, left_scale), (right, right_scale) = (
            reference_float8_cast(each, torch.float8_e4m3fn, is_rowwise, False) for each in values
        )
        found.append((left, right, left_scale, right_scale, is_rowwise))
    return found


FLOAT8_CAST = custom_op(
    "float8_cast(Tensor x, ScalarType dtype, bool is_rowwise, bool is_transposed) -> (Tensor, Tensor)",
    reference=reference_float8_cast,
    kernel=float8_on_gpu.float8_cast,
    fake=fake_float8_cast,
    examples=_make_cast_examples,
    prebuild=True,
).op
FLOAT8_CAST_BOTH = custom_op(
    "float8_cast_both(Tensor x, ScalarType dtype, bool is_rowwise) -> (Tensor, Tensor, Tensor, Tensor)",
    reference=reference_float8_cast_both,
    kernel=float8_on_gpu.float8_cast_both,
    fake=_fake_cast_both,
    examples=lambda: [(x, dtype, flag) for x, dtype, flag, other in _make_cast_examples() if other],
    prebuild=True,
).op
FLOAT8_MATMUL = custom_op(
    "float8_matmul(Tensor left, Tensor right, Tensor left_scale, Tensor right_scale, bool is_fast) -> Tensor",
    reference=reference_float8_matmul,
    fake=lambda left, right, *_: left.new_empty((left.shape[0], right.shape[0]), dtype=torch.bfloat16),
    examples=_make_matmul_examples,
).op
