"""RMS norm."""

import torch
from torch import Tensor, nn

from monograph.kernels.norm import norm, wide_dtype
from monograph.models.config import Kernels, ResidualSpec
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


class OffsetRMSNorm(RMSNorm):
    """Divide by the root mean square, then scale each channel by 1 + weight, in fp32 at least.

    In bf16 the sum would lose a weight below 0.004, so the module's weight is widened before it is added.
    """

    def forward(self, x: Tensor) -> Tensor:
        return norm(x, 1.0 + self.weight.to(wide_dtype(x)), self.eps, kernels=self.kernels)

    def plan_init(self) -> dict[str, InitSpec]:
        """How the weight starts."""
        return {"weight": Constant(0.0)}


def build_norm(residual: ResidualSpec, dim: int = 0) -> RMSNorm:
    """The kind of norm that the model has, of `dim` channels; 0 for those of the residual stream."""
    kind = OffsetRMSNorm if residual.offset_norms else RMSNorm
    return kind(dim or residual.dim, residual.norm_eps, residual.kernels)
