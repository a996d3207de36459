"""Grouped-query attention with biases on queries, keys and values."""

from typing import Any, ClassVar

from monograph.models.attention import Attention
from monograph.models.config import ResidualSpec
from monograph.models.linear import BiasedLinear
from monograph.models.parallel_plan import ParallelPlan, plan_column_row_pair
from monograph.models.qwen2_5.config import BiasedAttentionConfig


class BiasedAttention(Attention):
    """Attention with biases; the output has none."""

    Config: ClassVar[Any] = BiasedAttentionConfig

    def __init__(self, config: BiasedAttentionConfig, *, residual: ResidualSpec, **context: Any) -> None:
        super().__init__(config, residual=residual, **context)
        for name in ("wq", "wk", "wv"):
            plain = getattr(self, name)
            setattr(self, name, BiasedLinear(plain.in_features, plain.out_features, init_std=residual.init_std))

    def plan_parallel(self) -> ParallelPlan:
        """Every rank computes some of the heads, with their biases."""
        columns = [f"{name}.{kind}" for name in ("wq", "wk", "wv") for kind in ("weight", "bias")]
        return plan_column_row_pair(columns, ("wo.weight",))
