"""Experts with biases and a clamped SwiGLU.

Weights lie as checkpoints have them: [experts, in, out], with the columns of the gate and of the up projection in
turn, so that one matmul computes both and a shard of the columns has whole pairs.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from monograph.kernels.clamped_swiglu import clamped_swiglu
from monograph.kernels.expert_bias import add_expert_bias
from monograph.models.config import ResidualSpec
from monograph.models.experts import RoutedExperts
from monograph.models.gpt_oss.config import ClampedExpertsConfig
from monograph.models.init import Constant, InitSpec, Normal
from monograph.models.parallel_plan import ParallelPlan, ParameterRule, shard_experts


class ExpertBias(nn.Module):
    """A bias for every expert. It is added, and costs no matmul."""

    used_share = 0.0
    no_decay = ("weight",)

    def __init__(self, n_experts: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, width))

    def plan_init(self) -> dict[str, InitSpec]:
        """How it starts."""
        return {"weight": Constant(0.0)}

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """The rows, each with the bias of its expert."""
        out: Tensor = add_expert_bias(rows, self.weight, ends)
        return out


class ClampedExperts(RoutedExperts):
    """w2(clamped_swiglu(w13 x + bias)) for every expert; w2's bias is the MoE layer's, which adds it for each token."""

    Config: ClassVar[Any] = ClampedExpertsConfig
    config: ClampedExpertsConfig

    def __init__(
        self, config: ClampedExpertsConfig, *, n_experts: int, hidden_dim: int, residual: ResidualSpec, **context: Any
    ) -> None:
        super().__init__(config, n_experts=n_experts, hidden_dim=hidden_dim, residual=residual, **context)
        self.w13 = nn.Parameter(torch.empty(n_experts, residual.dim, 2 * hidden_dim))
        self.w2 = nn.Parameter(torch.empty(n_experts, hidden_dim, residual.dim))
        self.bias = ExpertBias(n_experts, 2 * hidden_dim)

    @property
    def widths(self) -> tuple[int, int]:
        hidden_dim, dim = self.w2.shape[1:]
        return hidden_dim, dim

    def plan_parallel(self) -> ParallelPlan:
        """Experts over ranks, and their hidden channels over further ones."""
        rules: tuple[ParameterRule, ...] = (shard_experts("w13", 2), shard_experts("w2", 1))
        return ParallelPlan(parameters=(*rules, shard_experts("bias.weight", 1)))

    def plan_init(self) -> dict[str, InitSpec]:
        """How the weights start."""
        return {"w13": Normal(self.residual.init_std), "w2": Normal(self.residual.out_std)}

    def compute_grouped(self, rows: Tensor, ends: Tensor, matmul: Callable[..., Tensor]) -> Tensor:
        pairs = self.bias(matmul(rows, self.w13, ends), ends)
        return matmul(self.activate(pairs), self.w2, ends)

    def stacks(self) -> tuple[Tensor, ...]:
        return self.w13, self.w2, self.bias.weight

    def compute_expert(self, rows: Tensor, *weights: Tensor) -> Tensor:
        w13, w2, bias = weights
        return self.activate(rows @ w13 + bias) @ w2

    def activate(self, pairs: Tensor) -> Tensor:
        """The clamped SwiGLU."""
        config = self.config
        return clamped_swiglu(pairs, alpha=config.alpha, limit=config.limit, kernels=self.residual.kernels)
