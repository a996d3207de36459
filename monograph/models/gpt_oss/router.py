"""A router whose gate has a bias, and whose weights are a softmax over the chosen experts."""

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from monograph.models.config import ResidualSpec
from monograph.models.gpt_oss.config import BiasedRouterConfig
from monograph.models.linear import BiasedLinear
from monograph.models.router import Router


class BiasedRouter(Router):
    """Scores are a softmax over all experts; with `norm`, weights are one over the logits of the chosen alone.

    That is the scores of the chosen divided by their sum, without the rounding: a token's only expert has weight 1 and
    its gate no gradient.
    """

    Config: ClassVar[Any] = BiasedRouterConfig

    def __init__(self, config: BiasedRouterConfig, *, n_experts: int, residual: ResidualSpec) -> None:
        super().__init__(config, n_experts=n_experts, residual=residual)
        self.gate = BiasedLinear(residual.dim, n_experts, init_std=residual.init_std)

    def score(self, x: Tensor) -> Tensor:
        return F.linear(x, self.gate.weight.float(), self.gate.bias.float())

    def find_standing(self, scores: Tensor, logits: Tensor) -> Tensor:
        """The logits, where nothing is added to scores: those of distant experts are all 0."""
        is_plain = self.expert_bias is None and self.config.n_groups == 1
        return logits if is_plain else scores

    def weigh(self, experts: Tensor, scores: Tensor, logits: Tensor) -> Tensor:
        if not self.config.norm or self.config.score != "softmax":
            return super().weigh(experts, scores, logits)
        return logits.gather(1, experts).softmax(dim=-1)
