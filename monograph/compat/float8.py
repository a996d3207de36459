"""Matmuls of float8 operands with scales, whose names in torch are private.

Checked on 2.11 (CUDA, H200) and 2.13 (CPU). On CUDA the left operand is row-major and the right one column-major, the
contraction and the right operand's rows are multiples of 16, and the result is bfloat16. On a CPU `_scaled_mm` takes
scales of rows in 2.13 but not in 2.11, so that a CPU multiplies in fp32 here; `_scaled_grouped_mm` has no CPU kernel.
"""

import torch
from torch import Tensor

from monograph.errors import ConfigError

FLOAT8_CAPABILITY = (8, 9)
"""The first compute capability with float8 matmuls."""
FLOAT8_MULTIPLE = 16
"""What the contraction and the width of the result must be a multiple of."""


def scaled_mm(left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, *, is_fast: bool) -> Tensor:
    """left [m, k] times right [n, k] transposed, with scales of shape [m, 1] and [n, 1], or [1, 1] both; bfloat16.

    `is_fast` sums in the tensor cores' own precision, which rounds earlier than fp32. A CPU sums in fp32.
    """
    if left.device.type == "cpu":
        return ((left.float() @ right.float().t()) * left_scale * right_scale.t()).bfloat16()
    return torch._scaled_mm(
        left, right.t(), left_scale, right_scale.t(), out_dtype=torch.bfloat16, use_fast_accum=is_fast
    )


def scaled_grouped_mm(rows: Tensor, weights: Tensor, row_scale: Tensor, weight_scale: Tensor, ends: Tensor) -> Tensor:
    """rows [m, k] of each group times its weights [groups, n, k] transposed; scales [m, 1] and [groups, n, 1]."""
    return torch._scaled_grouped_mm(
        rows,
        weights.transpose(1, 2),
        row_scale.squeeze(1),
        weight_scale.squeeze(2),
        offs=ends,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def check_float8_device(device: str) -> None:
    """Refuse a GPU of this machine that has no float8 matmuls; without one, graphs are made for another machine."""
    if device != "cuda" or not torch.cuda.is_available():
        return
    current = torch.cuda.current_device()
    found = torch.cuda.get_device_capability(current)
    if found < FLOAT8_CAPABILITY:
        raise ConfigError(
            f"float8 matmuls on {torch.cuda.get_device_name(current)}",
            why=f"its compute capability is {found[0]}.{found[1]}, and float8 begins with 8.9 (Ada, Hopper)",
            do="--compile.numerics fast",
        )
