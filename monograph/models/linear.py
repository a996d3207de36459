"""The leaf layers: projections, with and without a bias, and the embedding; they know how wide their weights start."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monograph.models.init import Constant, InitSpec, Normal


class _Planned:
    """A layer of torch's whose weights start as `plan_init` says.

    Until then they hold whatever was in memory. torch would draw values of its own first, on the meta device by
    importing all of its compiler: a second of every start.
    """

    def reset_parameters(self) -> None:
        """Leave the weights as they are."""


class Linear(_Planned, nn.Linear):
    """A projection without a bias."""

    def __init__(self, in_features: int, out_features: int, *, init_std: float) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.init_std = init_std

    def forward(self, input: Tensor) -> Tensor:
        """One matmul over all rows.

        Left to itself torch takes a batched matmul instead when a dimension of size 1 has an unusual stride and the
        weight needs no gradient: evaluation would then have other bits than training.
        """
        rows = F.linear(input.flatten(0, -2), self.weight)
        return rows if input.dim() == 2 else rows.unflatten(0, input.shape[:-1])

    def plan_init(self) -> dict[str, InitSpec]:
        """How the weight starts."""
        return {"weight": Normal(self.init_std)}


class BiasedLinear(_Planned, nn.Linear):
    """A projection with a bias, which starts at zero."""

    def __init__(self, in_features: int, out_features: int, *, init_std: float) -> None:
        super().__init__(in_features, out_features)
        self.init_std = init_std

    def forward(self, input: Tensor) -> Tensor:
        """One matmul over all rows, for the reason that `Linear` gives."""
        return F.linear(input.flatten(0, -2), self.weight, self.bias).unflatten(0, input.shape[:-1])

    def plan_init(self) -> dict[str, InitSpec]:
        """How the weight and the bias start."""
        return {"weight": Normal(self.init_std), "bias": Constant(0.0)}


class Embedding(_Planned, nn.Embedding):
    """One row per token id, multiplied by `scale`, which is rounded to the dtype of the weight first."""

    def __init__(self, vocab_size: int, dim: int, *, init_std: float, scale: float = 1.0) -> None:
        super().__init__(vocab_size, dim)
        self.init_std, self.scales = init_std, round_scale(scale)

    def forward(self, input: Tensor) -> Tensor:
        """The rows of these ids."""
        return scale_rows(F.embedding(input, self.weight), self.scales)

    def plan_init(self) -> dict[str, InitSpec]:
        """How the weight starts."""
        return {"weight": Normal(self.init_std)}


def round_scale(scale: float) -> dict[torch.dtype, float]:
    """A number as every dtype stores it: 33.94 is 34 in bf16. Empty for 1, by which nothing is multiplied."""
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    rounded = {dtype: torch.tensor(scale, dtype=dtype, device="cpu").item() for dtype in dtypes}
    return {} if scale == 1.0 else rounded


def scale_rows(rows: Tensor, scales: Mapping[torch.dtype, float]) -> Tensor:
    """The rows times the scale of their dtype; as they are where there is none."""
    return rows * scales[rows.dtype] if scales else rows
