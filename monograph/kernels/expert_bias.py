"""Biases of experts: every row gets the bias of its expert, and every expert's bias the sum of its rows' gradients.

Rows arrive sorted by expert, so a bias's gradient is a sum over consecutive rows, always in the same order; gathering a
bias for each row would add gradients up atomically on a GPU. Nothing is read by the host there.
"""

import torch
from torch import Tensor

from monograph.kernels import expert_bias_on_gpu
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor
from monograph.kernels.grouped_matmul import find_parts


def reference_add_expert_bias(rows: Tensor, bias: Tensor, ends: Tensor) -> Tensor:
    """One expert after the other."""
    found = rows.new_empty(rows.shape)
    for expert, part in find_parts(ends, rows.shape[0]):
        torch.add(rows[part], bias[expert], out=found[part])
    return found


def reference_expert_bias_grad(grad: Tensor, ends: Tensor) -> Tensor:
    """[experts, width]; zero for an expert without rows."""
    found = grad.new_zeros(ends.shape[0], grad.shape[1])
    for expert, part in find_parts(ends, grad.shape[0]):
        found[expert] = grad[part].sum(0)
    return found


def add_expert_bias_backward(grad: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """The rows' gradient is the result's."""
    return grad, EXPERT_BIAS_GRAD(grad, ends)


def _make_examples() -> list[tuple[Tensor, Tensor, Tensor]]:
    """The second of three experts has no rows."""
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    return [(example_tensor(5, 24), example_tensor(3, 24, seed=1), ends)]


EXPERT_BIAS_GRAD = custom_op(
    "expert_bias_grad(Tensor grad, Tensor ends) -> Tensor",
    reference=reference_expert_bias_grad,
    kernel=expert_bias_on_gpu.expert_bias_grad,
    fake=lambda grad, ends: grad.new_empty((ends.shape[0], grad.shape[1])),
    examples=lambda: [(rows, ends) for rows, _, ends in _make_examples()],
    prebuild=True,
).op
add_expert_bias = custom_op(
    "add_expert_bias(Tensor rows, Tensor bias, Tensor ends) -> Tensor",
    reference=reference_add_expert_bias,
    kernel=expert_bias_on_gpu.add_expert_bias,
    fake=lambda rows, bias, ends: rows.new_empty(rows.shape),
    backward=add_expert_bias_backward,
    save=("ends",),
    gradients=("rows", "bias"),
    examples=_make_examples,
    prebuild=True,
)
"""rows [rows, width] plus bias [experts, width] of each row's expert; `ends` says where each expert's rows end."""
ADD_EXPERT_BIAS = add_expert_bias.op
