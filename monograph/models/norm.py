"""RMS norm."""

import torch
from torch import Tensor, nn

from monograph.kernels.norm import norm
from monograph.models.config import Kernels
from monograph.models.init import Constant, InitSpec


class RMSNorm(nn.Module):
    """Divide by the root mean square of the last dim, then scale each channel.

    The mean square of bf16 inputs is taken in fp32 (torch's kernel does so by itself). The weight follows the input's
    dtype: with mixed dtypes torch leaves its fused kernel.
    """

    def __init__(self, dim: int, eps: float, kernels: Kernels = "auto") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps, self.kernels = eps, kernels

    def forward(self, x: Tensor) -> Tensor:
        return norm(x, self.weight.to(x.dtype), self.eps, kernels=self.kernels)

    def plan_init(self) -> dict[str, InitSpec]:
        """How the weight starts."""
        return {"weight": Constant(1.0)}
