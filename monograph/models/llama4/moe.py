"""A mixture of experts that scales what an expert reads."""

from typing import Any, ClassVar

from torch import Tensor

from monograph.models.llama4.config import Llama4MoeConfig
from monograph.models.moe import Moe
from monograph.models.router import Choice


class InputScaledMoe(Moe):
    """A token goes to its experts multiplied by their scores, and their answers are summed as they are."""

    Config: ClassVar[Any] = Llama4MoeConfig

    def run_experts(self, tokens: Tensor, choice: Choice) -> tuple[Tensor, Tensor]:
        top_k = choice.experts.shape[1]
        scaled = (tokens.unsqueeze(1) * choice.weights.to(tokens.dtype).unsqueeze(-1)).flatten(0, 1)
        each = choice._replace(experts=choice.experts.view(-1, 1), weights=choice.weights.new_ones(scaled.shape[0], 1))
        out, load = super().run_experts(scaled, each)
        return out.unflatten(0, (-1, top_k)).sum(1), load
