"""Experts whose gate and up projection are one weight.

Weights lie as checkpoints have them, [experts, in, out]; the columns of the gate come before those of the up
projection, and a dim of their own tells them apart, so that a shard has as many of one as of the other.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from monograph.kernels.swiglu import swiglu
from monograph.models.config import ResidualSpec
from monograph.models.experts import RoutedExperts
from monograph.models.init import InitSpec, Normal
from monograph.models.llama4.config import PairedExpertsConfig
from monograph.models.parallel_plan import ParallelPlan, shard_experts


class PairedExperts(RoutedExperts):
    """w2(silu(w13[0] x) * w13[1] x) for every expert."""

    Config: ClassVar[Any] = PairedExpertsConfig

    def __init__(
        self, config: PairedExpertsConfig, *, n_experts: int, hidden_dim: int, residual: ResidualSpec, **context: Any
    ) -> None:
        super().__init__(config, n_experts=n_experts, hidden_dim=hidden_dim, residual=residual, **context)
        self.w13 = nn.Parameter(torch.empty(n_experts, residual.dim, 2, hidden_dim))
        self.w2 = nn.Parameter(torch.empty(n_experts, hidden_dim, residual.dim))

    @property
    def widths(self) -> tuple[int, int]:
        hidden_dim, dim = self.w2.shape[1:]
        return hidden_dim, dim

    def plan_parallel(self) -> ParallelPlan:
        """Experts over ranks, and their hidden channels over further ones."""
        return ParallelPlan(parameters=(shard_experts("w13", 3), shard_experts("w2", 1)))

    def plan_init(self) -> dict[str, InitSpec]:
        """How the weights start."""
        return {"w13": Normal(self.residual.init_std), "w2": Normal(self.residual.out_std)}

    def compute_grouped(self, rows: Tensor, ends: Tensor, matmul: Callable[..., Tensor]) -> Tensor:
        both = matmul(rows, self.w13.flatten(2), ends)
        return matmul(self.activate(both), self.w2, ends)

    def stacks(self) -> tuple[Tensor, ...]:
        return self.w13, self.w2

    def compute_expert(self, rows: Tensor, *weights: Tensor) -> Tensor:
        w13, w2 = weights
        return self.activate(rows @ w13.flatten(1)) @ w2

    def activate(self, both: Tensor) -> Tensor:
        """The SwiGLU of gate and up projection, side by side."""
        gate, up = both.chunk(2, dim=-1)
        return swiglu(gate, up, kernels=self.residual.kernels)
