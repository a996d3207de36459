"""The matmuls of experts with float8 operands. torch's kernel for them runs on GPUs only."""

import torch
from torch import Tensor

from monograph.compat.float8 import scaled_mm
from monograph.kernels import float8_grouped_on_gpu
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor
from monograph.kernels.float8 import reference_float8_cast
from monograph.kernels.grouped_matmul import find_parts

_Example = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def reference_float8_grouped_matmul(
    rows: Tensor, weights: Tensor, row_scale: Tensor, weight_scale: Tensor, ends: Tensor
) -> Tensor:
    """Each expert's rows [rows, in] times its weights [experts, out, in] transposed, in bfloat16."""
    found = torch.empty(rows.shape[0], weights.shape[1], dtype=torch.bfloat16, device=rows.device)
    for expert, part in find_parts(ends, rows.shape[0]):
        found[part] = scaled_mm(rows[part], weights[expert], row_scale[part], weight_scale[expert], is_fast=True)
    return found


def _make_examples() -> list[_Example]:
    """The second of three experts has no rows."""
    rows, weights = (
        example_tensor(96, 64, dtype=torch.bfloat16),
        example_tensor(3, 48, 64, dtype=torch.bfloat16, seed=1),
    )
    (left, left_scale), (right, right_scale) = (
        reference_float8_cast(each, torch.float8_e4m3fn, True, False) for each in (rows, weights)
    )
    return [(left, right, left_scale, right_scale, torch.tensor([32, 32, 96], dtype=torch.int32))]


FLOAT8_GROUPED_MATMUL = custom_op(
    "float8_grouped_matmul(Tensor rows, Tensor weights, Tensor row_scale, Tensor weight_scale, Tensor ends) -> Tensor",
    reference=reference_float8_grouped_matmul,
    kernel=float8_grouped_on_gpu.float8_grouped_matmul,
    fake=lambda rows, weights, *_: rows.new_empty((rows.shape[0], weights.shape[1]), dtype=torch.bfloat16),
    examples=_make_examples,
).op
"""Each expert's rows times its weights; `ends` (int32) says where each expert's rows end."""
