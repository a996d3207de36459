"""Casts to float8 that find or know the largest magnitudes of columns. For fuse_float8_casts.

What is cast by rows and later transposed, such as a weight, is read three times: by the first cast, to find the largest
magnitudes of columns, and by the second. The first cast finds them on the way.
"""

import torch
from torch import Tensor

from monograph.kernels import float8_on_gpu
from monograph.kernels.custom_op import custom_op
from monograph.kernels.float8 import Float8, fake_float8_cast, make_float8_examples, reference_float8_cast, scale_by


def reference_float8_cast_amax(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x in float8 with scales of rows, and the largest magnitude of every column in fp32."""
    wide = x.bfloat16().float().abs()
    amax = wide.amax(-2) if wide.shape[-2] else wide.new_zeros((*wide.shape[:-2], wide.shape[-1]))
    return *reference_float8_cast(x, dtype, True, False), amax


def reference_float8_cast_transposed(x: Tensor, amax: Tensor, dtype: torch.dtype) -> Float8:
    """The last two dims of x transposed, in float8, scaled by what is known of its columns."""
    return scale_by(x.mT.bfloat16().float(), amax.unsqueeze(-1), dtype)


def _fake_cast_amax(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    amax = x.new_empty((*x.shape[:-2], x.shape[-1]), dtype=torch.float32)
    return *fake_float8_cast(x, dtype, True, False), amax


def _make_examples() -> list[tuple[Tensor, Tensor, torch.dtype]]:
    found = []
    for x in make_float8_examples():
        *_, amax = reference_float8_cast_amax(x, torch.float8_e4m3fn)
        found.append((x, amax, torch.float8_e4m3fn))
    return found


FLOAT8_CAST_AMAX = custom_op(
    "float8_cast_amax(Tensor x, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    reference=reference_float8_cast_amax,
    kernel=float8_on_gpu.float8_cast_amax,
    fake=_fake_cast_amax,
    examples=lambda: [(x, dtype) for x, _, dtype in _make_examples()],
    prebuild=True,
).op
FLOAT8_CAST_TRANSPOSED = custom_op(
    "float8_cast_transposed(Tensor x, Tensor amax, ScalarType dtype) -> (Tensor, Tensor)",
    reference=reference_float8_cast_transposed,
    kernel=float8_on_gpu.float8_cast_transposed,
    fake=lambda x, amax, dtype: fake_float8_cast(x, dtype, True, True),
    examples=_make_examples,
    prebuild=True,
).op
