"""Grouped-query attention with biases and sinks."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from monograph.config.configurable import Configurable
from monograph.kernels.rope import Rotation
from monograph.models.attention import Attention
from monograph.models.cache import LayerCache
from monograph.models.config import ResidualSpec
from monograph.models.gpt_oss.config import SinkAttentionConfig
from monograph.models.init import Constant, InitSpec, Normal
from monograph.models.linear import BiasedLinear
from monograph.models.parallel_plan import ParallelPlan, plan_column_row_pair


class SinkHeads(Attention):
    """The heads: queries, keys and values have biases, and every query head has a sink."""

    Config: ClassVar[Any] = SinkAttentionConfig

    def __init__(self, config: SinkAttentionConfig, *, residual: ResidualSpec, **context: Any) -> None:
        super().__init__(config, residual=residual, **context)
        self.init_std = residual.init_std
        for name in ("wq", "wk", "wv"):
            plain = getattr(self, name)
            setattr(self, name, BiasedLinear(plain.in_features, plain.out_features, init_std=residual.init_std))
        self.sinks = nn.Parameter(torch.empty(config.n_heads))

    def plan_init(self) -> dict[str, InitSpec]:
        """How the sinks start."""
        return {"sinks": Normal(self.init_std)}

    def plan_parallel(self) -> ParallelPlan:
        """Every rank computes some of the heads, with their biases and sinks."""
        columns = [f"{name}.{kind}" for name in ("wq", "wk", "wv") for kind in ("weight", "bias")]
        return plan_column_row_pair((*columns, "sinks"), ("wo.weight",))


class SinkAttention(nn.Module, Configurable):
    """The heads, and the bias of their output: added once, after tensor-parallel ranks have summed their shares."""

    Config: ClassVar[Any] = SinkAttentionConfig

    def __init__(self, config: SinkAttentionConfig, *, residual: ResidualSpec, **context: Any) -> None:
        super().__init__()
        self.heads = SinkHeads(config, residual=residual, **context)
        self.bias = nn.Parameter(torch.empty(residual.dim))

    def plan_init(self) -> dict[str, InitSpec]:
        """How the bias starts."""
        return {"bias": Constant(0.0)}

    def forward(
        self, x: Tensor, rotation: Rotation, segments: Tensor | None = None, cache: LayerCache | None = None
    ) -> Tensor:
        out: Tensor = self.heads(x, rotation, segments, cache)
        return out + self.bias
