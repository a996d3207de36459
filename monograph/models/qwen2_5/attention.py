"""Grouped-query attention with biases on queries, keys and values."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from monograph.models.attention import Attention
from monograph.models.config import ResidualSpec
from monograph.models.init import Constant, InitSpec, Normal
from monograph.models.parallel_plan import ParallelPlan, plan_column_row_pair
from monograph.models.qwen2_5.config import BiasedAttentionConfig


class BiasedLinear(nn.Linear):
    """A projection with a bias, which starts at zero."""

    def __init__(self, in_features: int, out_features: int, *, init_std: float) -> None:
        super().__init__(in_features, out_features)
        self.init_std = init_std

    def reset_parameters(self) -> None:
        """Leave the weights as they are: `plan_init` says how they start."""

    def forward(self, input: Tensor) -> Tensor:
        """One matmul over all rows, for the reason that `models.linear.Linear` gives."""
        return F.linear(input.flatten(0, -2), self.weight, self.bias).unflatten(0, input.shape[:-1])

    def plan_init(self) -> dict[str, InitSpec]:
        """How the weight and the bias start."""
        return {"weight": Normal(self.init_std), "bias": Constant(0.0)}


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
