"""The gated feed-forward layer (SwiGLU)."""

from torch import Tensor, nn

from monograph.config.configurable import Configurable
from monograph.kernels.swiglu import swiglu
from monograph.models.config import FeedForwardConfig, ResidualSpec
from monograph.models.linear import Linear
from monograph.models.parallel_plan import ParallelPlan, plan_column_row_pair


class FeedForward(nn.Module, Configurable):
    """w2(silu(w1 x) * w3 x)."""

    Config = FeedForwardConfig

    def __init__(self, config: FeedForwardConfig, *, residual: ResidualSpec) -> None:
        super().__init__()
        self.kernels = residual.kernels
        self.w1 = Linear(residual.dim, config.hidden_dim, init_std=residual.init_std)
        self.w2 = Linear(config.hidden_dim, residual.dim, init_std=residual.out_std)
        self.w3 = Linear(residual.dim, config.hidden_dim, init_std=residual.init_std)

    def plan_parallel(self) -> ParallelPlan:
        """Every rank computes some of the hidden channels."""
        return plan_column_row_pair(("w1.weight", "w3.weight"), ("w2.weight",))

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(swiglu(self.w1(x), self.w3(x), kernels=self.kernels))
