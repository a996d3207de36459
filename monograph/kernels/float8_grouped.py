"""The matmuls of experts with float8 operands, for which torch's kernel runs on GPUs only, and the rows they read."""

import torch
from torch import Tensor

from monograph.compat.float8 import scaled_mm
from monograph.kernels import float8_grouped_on_gpu
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor
from monograph.kernels.float8 import Float8, reference_float8_cast
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


def reference_float8_gather_rows(numbers: Tensor, scales: Tensor, rows: Tensor) -> Float8:
    """Numbers and scales of these rows. As bytes: torch takes rows of float8 not on every device."""
    return numbers.view(torch.uint8)[rows].view(numbers.dtype), scales[rows]


def _make_gather_examples() -> list[tuple[Tensor, Tensor, Tensor]]:
    """A row twice, and one not at all."""
    values = example_tensor(4, 16, dtype=torch.bfloat16)
    return [(*reference_float8_cast(values, torch.float8_e4m3fn, True, False), torch.tensor([2, 0, 2, 1]))]


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
FLOAT8_GATHER_ROWS = custom_op(
    "float8_gather_rows(Tensor numbers, Tensor scales, Tensor rows) -> (Tensor, Tensor)",
    reference=reference_float8_gather_rows,
    fake=lambda numbers, scales, rows: (
        numbers.new_empty((*rows.shape, numbers.shape[1])),
        scales.new_empty((*rows.shape, 1)),
    ),
    examples=_make_gather_examples,
).op
"""Rows of a matrix in float8, by their numbers (int64)."""
