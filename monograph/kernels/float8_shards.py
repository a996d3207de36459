"""Casts to float8 of shards of a matrix that has one scale. For gather_float8.

A rank has a shard of a weight. The largest magnitude of the whole is the largest of those of all shards, which ranks
tell each other; then every rank casts its shard, and numbers are gathered in float8.
"""

import torch
from torch import Tensor

from monograph.kernels import float8_on_gpu
from monograph.kernels.custom_op import custom_op
from monograph.kernels.float8 import Float8, fake_float8_cast, make_float8_examples, scale_by


def reference_float8_amax(x: Tensor) -> Tensor:
    """The largest magnitude in fp32 [1], of what fp32 is rounded to in bfloat16."""
    wide = x.bfloat16().float().abs()
    return wide.amax().view(1) if wide.numel() else wide.new_zeros(1)


def reference_float8_cast_known(x: Tensor, amax: Tensor, dtype: torch.dtype) -> Float8:
    """x in float8 and its scale [1, 1], by a largest magnitude [1] of more than x."""
    return scale_by(x.bfloat16().float(), amax.view(1, 1), dtype)


def _make_examples() -> list[tuple[Tensor, Tensor, torch.dtype]]:
    """Parts of a larger matrix, whose largest magnitude is elsewhere."""
    dtypes = (torch.float8_e4m3fn, torch.float8_e5m2)
    return [(x, 1.5 * reference_float8_amax(x), dtypes[i % 2]) for i, x in enumerate(make_float8_examples())]


FLOAT8_AMAX = custom_op(
    "float8_amax(Tensor x) -> Tensor",
    reference=reference_float8_amax,
    kernel=float8_on_gpu.float8_amax,
    fake=lambda x: x.new_empty((1,), dtype=torch.float32),
    examples=lambda: [(x,) for x, _, _ in _make_examples()],
    prebuild=True,
).op
FLOAT8_CAST_KNOWN = custom_op(
    "float8_cast_known(Tensor x, Tensor amax, ScalarType dtype) -> (Tensor, Tensor)",
    reference=reference_float8_cast_known,
    kernel=float8_on_gpu.float8_cast_known,
    fake=lambda x, amax, dtype: fake_float8_cast(x, dtype, False, False),
    examples=_make_examples,
    prebuild=True,
).op
