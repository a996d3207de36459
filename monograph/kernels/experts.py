"""Matmuls of experts' rows beyond torch's grouped one: with SwiGLU in the epilogue, and two of them added up.

The pass fuse_expert_matmuls puts these into graphs. On a GPU of compute capability 9 each is one kernel
(docs/decisions/0040), elsewhere torch's grouped matmuls one after the other. Weights are stacked, and `ends` says where
each expert's rows end.
"""

import torch
from torch import Tensor

from monograph.kernels import experts_on_gpu
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor
from monograph.kernels.grouped_matmul import reference_grouped_matmul
from monograph.kernels.swiglu import reference_swiglu


def reference_expert_matmul(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each expert's rows times its weight, which is [experts, out, in]."""
    return reference_grouped_matmul(rows, weight.transpose(1, 2), ends)


def reference_expert_swiglu(rows: Tensor, gate: Tensor, up: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each expert's rows times both of its weights, and the gate of the two."""
    x, y = reference_expert_matmul(rows, gate, ends), reference_expert_matmul(rows, up, ends)
    return x, y, reference_swiglu(x, y)


def reference_expert_matmul_sum(
    rows: Tensor, weight: Tensor, other_rows: Tensor, other_weight: Tensor, ends: Tensor
) -> Tensor:
    """rows @ weight + other_rows @ other_weight, expert by expert; weights are [experts, in, out]."""
    return reference_grouped_matmul(rows, weight, ends) + reference_grouped_matmul(other_rows, other_weight, ends)


def _fake_expert_swiglu(rows: Tensor, gate: Tensor, up: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = rows.shape[0], gate.shape[1]
    return rows.new_empty(shape), rows.new_empty(shape), rows.new_empty(shape)


def _make_examples() -> tuple[Tensor, list[Tensor], Tensor]:
    """Rows, two weights [experts, out, in] and where experts' rows end; the second of three experts has none."""
    weights = [example_tensor(3, 6, 4, seed=seed) for seed in (1, 2)]
    return example_tensor(5, 4), weights, torch.tensor([2, 2, 5], dtype=torch.int32)


def _make_sum_examples() -> list[tuple[Tensor, ...]]:
    rows, (one, other), ends = _make_examples()
    return [(rows, one.mT.contiguous(), example_tensor(5, 4, seed=3), other.mT.contiguous(), ends)]


EXPERT_MATMUL = custom_op(
    "expert_matmul(Tensor rows, Tensor weight, Tensor ends) -> Tensor",
    reference=reference_expert_matmul,
    kernel=experts_on_gpu.expert_matmul,
    fake=lambda rows, weight, ends: rows.new_empty((rows.shape[0], weight.shape[1])),
    examples=lambda: [(rows, one, ends) for rows, (one, _), ends in [_make_examples()]],
    prebuild=True,
).op
EXPERT_SWIGLU = custom_op(
    "expert_swiglu(Tensor rows, Tensor gate, Tensor up, Tensor ends) -> (Tensor, Tensor, Tensor)",
    reference=reference_expert_swiglu,
    kernel=experts_on_gpu.expert_swiglu,
    fake=_fake_expert_swiglu,
    examples=lambda: [(rows, *weights, ends) for rows, weights, ends in [_make_examples()]],
    prebuild=True,
).op
EXPERT_MATMUL_SUM = custom_op(
    "expert_matmul_sum(Tensor rows, Tensor weight, Tensor other_rows, Tensor other_weight, Tensor ends) -> Tensor",
    reference=reference_expert_matmul_sum,
    kernel=experts_on_gpu.expert_matmul_sum,
    fake=lambda rows, weight, other_rows, other_weight, ends: rows.new_empty((rows.shape[0], weight.shape[2])),
    examples=_make_sum_examples,
    prebuild=True,
).op
