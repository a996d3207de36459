"""SwiGLU and its backward with results in float8, for matmuls that read nothing else. For fuse_float8_casts.

Results are matrices in e4m3 with scales of their rows: whatever dims come before the last are one.
"""

import math

import torch
from torch import Tensor

from monograph.kernels import float8_swiglu_on_gpu
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor
from monograph.kernels.float8 import Float8, reference_float8_cast
from monograph.kernels.swiglu import reference_swiglu, reference_swiglu_backward_packed_recompute

E4M3 = torch.float8_e4m3fn
_Backward = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def reference_float8_swiglu(x: Tensor, up: Tensor) -> Float8:
    """The gate in float8."""
    return reference_float8_cast(as_matrix(reference_swiglu(x, up)), E4M3, True, False)


def reference_float8_swiglu_backward(grad: Tensor, x: Tensor, up: Tensor) -> _Backward:
    """Both gradients side by side, as they are and transposed, and the gate transposed."""
    both, gate = map(as_matrix, reference_swiglu_backward_packed_recompute(grad, x, up))
    wanted = ((both, False), (both, True), (gate, True))
    first, second, third = (reference_float8_cast(each, E4M3, True, flag) for each, flag in wanted)
    return *first, *second, *third


def as_matrix(value: Tensor) -> Tensor:
    """Rows and columns."""
    return value.flatten(0, -2)


def fake_float8(like: Tensor, rows: int, columns: int) -> Float8:
    """Numbers and scales without values."""
    return like.new_empty((rows, columns), dtype=E4M3), like.new_empty((rows, 1), dtype=torch.float32)


def _fake_swiglu(x: Tensor, up: Tensor) -> Float8:
    return fake_float8(x, math.prod(x.shape[:-1]), x.shape[-1])


def _fake_swiglu_backward(grad: Tensor, x: Tensor, up: Tensor) -> _Backward:
    rows, columns = math.prod(x.shape[:-1]), x.shape[-1]
    shapes = ((rows, 2 * columns), (2 * columns, rows), (columns, rows))
    first, second, third = (fake_float8(x, *shape) for shape in shapes)
    return *first, *second, *third


def _make_examples() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Gradient, gate and up projection in bfloat16, the last two as halves of one matmul.

    Gates are 0 or so large that their sigmoid is 1: what is rounded to float8 is then the same number on every device.
    """
    grad, up, choice = (example_tensor(2, 35, 48, dtype=torch.bfloat16, seed=seed) for seed in range(3))
    pairs = torch.cat(((choice > 0) * (choice.abs() + 40), up), -1)
    gate, up = pairs.chunk(2, -1)
    return [(grad, gate, up)]


FLOAT8_SWIGLU = custom_op(
    "float8_swiglu(Tensor x, Tensor up) -> (Tensor, Tensor)",
    reference=reference_float8_swiglu,
    kernel=float8_swiglu_on_gpu.float8_swiglu,
    fake=_fake_swiglu,
    examples=lambda: [args[1:] for args in _make_examples()],
    prebuild=True,
).op
FLOAT8_SWIGLU_BACKWARD = custom_op(
    "float8_swiglu_backward(Tensor grad, Tensor x, Tensor up) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference=reference_float8_swiglu_backward,
    kernel=float8_swiglu_on_gpu.float8_swiglu_backward,
    fake=_fake_swiglu_backward,
    examples=_make_examples,
    prebuild=True,
).op
