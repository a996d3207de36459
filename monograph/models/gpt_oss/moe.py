"""A mixture of experts whose answers have biases."""

from typing import Any, ClassVar

from torch import Tensor

from monograph.models.config import ResidualSpec
from monograph.models.gpt_oss.config import BiasedMoeConfig
from monograph.models.gpt_oss.experts import ExpertBias
from monograph.models.moe import Moe
from monograph.models.router import Choice


class BiasedMoe(Moe):
    """The biases of the experts' answers are added to each token's sum, weighted as the answers are.

    So they are whole on every rank: ranks that share an expert's hidden channels would each add an expert's bias to
    their part of its answer.
    """

    Config: ClassVar[Any] = BiasedMoeConfig

    def __init__(self, config: BiasedMoeConfig, *, residual: ResidualSpec) -> None:
        super().__init__(config, residual=residual)
        self.bias = ExpertBias(config.n_experts, residual.dim)

    def run_experts(self, tokens: Tensor, choice: Choice) -> tuple[Tensor, Tensor]:
        out, load = super().run_experts(tokens, choice)
        shares = choice.scores.new_zeros(choice.scores.shape).scatter(1, choice.experts, choice.weights)
        return out + (shares.to(out.dtype) @ self.bias.weight), load
