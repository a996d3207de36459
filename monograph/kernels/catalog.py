"""All custom ops: what launches each on a GPU, and what a compiler is given instead.

To a compiler most of them are torch's ops, which it fuses with their neighbours. The loss is not: our kernel is faster
than what the compiler makes, and only an op can write over its logits (docs/decisions/0008).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monograph.compat.compiler import add_decompositions
from monograph.kernels import (
    chunked_cross_entropy,
    chunked_cross_entropy_on_gpu,
    expert_rows,
    expert_rows_on_gpu,
    grouped_matmul,
    heads,
    heads_on_gpu,
    matmul_swiglu,
    matmul_swiglu_on_gpu,
    norm,
    norm_on_gpu,
    rope,
    rope_on_gpu,
    swiglu,
    swiglu_on_gpu,
    wide,
    wide_on_gpu,
)


@dataclass(frozen=True)
class CustomOp:
    """One op."""

    op: Any
    launcher: Callable[..., Any]
    """What the op does on a GPU: the function that launches its kernels."""
    reference: Callable[..., Any] | None = None
    """The same in torch's ops, where a compiler is given these."""

    @property
    def name(self) -> str:
        """Without its namespace."""
        return str(self.op.name()).partition("::")[2]


_ALL = (
    CustomOp(swiglu.SWIGLU, swiglu_on_gpu.swiglu, swiglu.reference_swiglu),
    CustomOp(swiglu.SWIGLU_BACKWARD, swiglu_on_gpu.swiglu_backward, swiglu.reference_swiglu_backward),
    CustomOp(
        swiglu.SWIGLU_BACKWARD_RECOMPUTE,
        swiglu_on_gpu.swiglu_backward_recompute,
        swiglu.reference_swiglu_backward_recompute,
    ),
    CustomOp(
        swiglu.SWIGLU_BACKWARD_PACKED, swiglu_on_gpu.swiglu_backward_packed, swiglu.reference_swiglu_backward_packed
    ),
    CustomOp(
        swiglu.SWIGLU_BACKWARD_PACKED_RECOMPUTE,
        swiglu_on_gpu.swiglu_backward_packed_recompute,
        swiglu.reference_swiglu_backward_packed_recompute,
    ),
    CustomOp(matmul_swiglu.MATMUL_SWIGLU, matmul_swiglu_on_gpu.matmul_swiglu, matmul_swiglu.reference_matmul_swiglu),
    CustomOp(
        matmul_swiglu.MATMUL_SWIGLU_BACKWARD,
        matmul_swiglu_on_gpu.matmul_swiglu_backward,
        matmul_swiglu.reference_matmul_swiglu_backward,
    ),
    CustomOp(rope.ROPE, rope_on_gpu.rope, rope.reference_rope),
    CustomOp(rope.ROPE_PACKED, rope_on_gpu.rope_packed, rope.reference_rope_packed),
    CustomOp(norm.NORM, norm_on_gpu.norm, norm.reference_norm),
    CustomOp(norm.ADD_NORM, norm_on_gpu.add_norm, norm.reference_add_norm),
    CustomOp(norm.NORM_BACKWARD, norm_on_gpu.norm_backward, norm.reference_norm_backward),
    CustomOp(norm.NORM_BACKWARD_RECOMPUTE, norm_on_gpu.norm_backward_recompute, norm.reference_norm_backward_recompute),
    CustomOp(chunked_cross_entropy.CHUNKED_CROSS_ENTROPY, chunked_cross_entropy_on_gpu.chunked_cross_entropy),
    CustomOp(heads.JOIN_HEADS, heads_on_gpu.join_heads, heads.reference_join_heads),
    CustomOp(heads.SPLIT_HEADS, heads_on_gpu.split_heads, heads.reference_split_heads),
    CustomOp(expert_rows.SUM_ROWS, expert_rows_on_gpu.sum_rows, expert_rows.reference_sum_rows),
    CustomOp(expert_rows.COMBINE_ROWS, expert_rows_on_gpu.combine_rows, expert_rows.reference_combine_rows),
    CustomOp(
        expert_rows.COMBINE_ROWS_BACKWARD,
        expert_rows_on_gpu.combine_rows_backward,
        expert_rows.reference_combine_rows_backward,
    ),
    CustomOp(wide.ADD_WIDE, wide_on_gpu.add_wide, wide.reference_add_wide),
)
COMPOSED_OPS = (grouped_matmul.GROUPED_MATMUL, grouped_matmul.GROUPED_MATMUL_WEIGHT_GRAD)
"""Ops that call torch's own on every device, and need no kernel."""
CUSTOM_OPS: dict[Any, CustomOp] = {each.op: each for each in _ALL}
REFERENCES: dict[Any, Callable[..., Any]] = {each.op: each.reference for each in _ALL if each.reference is not None}


def register_decompositions() -> None:
    """Let Inductor take our ops apart. Doing it twice changes nothing."""
    add_decompositions(REFERENCES)
