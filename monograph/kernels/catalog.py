"""All ops of our own: who launches each on a GPU, and what it is to a compiler.

To a compiler most of them are torch's ops, which it fuses with their neighbours. The loss is not: our kernel is faster
than what the compiler makes, and only an op can write over its logits (docs/decisions/0008).
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from monograph.compat.compiler import add_decompositions
from monograph.kernels import expert_rows, gate, gated_product, heads, norm, rotation, sliced_loss, wide


@dataclass(frozen=True)
class Own:
    """One op."""

    op: Any
    module: str
    """Where it is launched, by a function of the op's name; imported with the first CUDA tensor."""
    plain: Callable[..., Any] | None = None
    """The same in torch's ops, where a compiler is given these."""

    @property
    def name(self) -> str:
        """Without its namespace."""
        return str(self.op.name()).partition("::")[2]

    def find_launcher(self) -> Callable[..., Any]:
        """What the op does on a GPU."""
        return getattr(importlib.import_module(f"monograph.kernels.{self.module}"), self.name)


_ALL = (
    Own(gate.GATE, "gate_on_gpu", gate.plain_gate),
    Own(gate.GATE_BACKWARD, "gate_on_gpu", gate.plain_gate_backward),
    Own(gate.GATE_BACKWARD_AGAIN, "gate_on_gpu", gate.plain_gate_backward_again),
    Own(gate.GATE_BACKWARD_JOINED, "gate_on_gpu", gate.plain_gate_backward_joined),
    Own(gate.GATE_BACKWARD_JOINED_AGAIN, "gate_on_gpu", gate.plain_gate_backward_joined_again),
    Own(gated_product.GATED_PRODUCT, "gated_product_on_gpu", gated_product.plain_gated_product),
    Own(gated_product.PRODUCT_GATE_BACKWARD, "gated_product_on_gpu", gated_product.plain_product_gate_backward),
    Own(rotation.ROTATE, "rotation_on_gpu", rotation.turn),
    Own(rotation.ROTATE_JOINED, "rotation_on_gpu", rotation.turn_joined),
    Own(norm.NORM, "norm_on_gpu", norm.plain_norm),
    Own(norm.ADD_NORM, "norm_on_gpu", norm.plain_add_norm),
    Own(norm.NORM_BACKWARD, "norm_on_gpu", norm.plain_norm_backward),
    Own(norm.NORM_BACKWARD_AGAIN, "norm_on_gpu", norm.plain_norm_backward_again),
    Own(sliced_loss.SLICED_LOSS, "sliced_loss_on_gpu"),
    Own(heads.JOIN_HEADS, "heads_on_gpu", heads.plain_join_heads),
    Own(heads.SPLIT_HEADS, "heads_on_gpu", heads.plain_split_heads),
    Own(expert_rows.SUM_ROWS, "expert_rows_on_gpu", expert_rows.plain_sum_rows),
    Own(expert_rows.COMBINE_ROWS, "expert_rows_on_gpu", expert_rows.plain_combine_rows),
    Own(expert_rows.COMBINE_ROWS_BACKWARD, "expert_rows_on_gpu", expert_rows.plain_combine_rows_backward),
    Own(wide.ADD_WIDE, "wide_on_gpu", wide.plain_add_wide),
)
OWN: dict[Any, Own] = {own.op: own for own in _ALL}
PLAIN_FORMS: dict[Any, Callable[..., Any]] = {own.op: own.plain for own in _ALL if own.plain is not None}


def teach_compiler() -> None:
    """Let Inductor take our ops apart. Doing it twice changes nothing."""
    add_decompositions(PLAIN_FORMS)
