"""The router of Llama 4."""

from typing import Any, ClassVar

from torch import Tensor

from monograph.models.llama4.config import Llama4RouterConfig
from monograph.models.router import Router


class Llama4Router(Router):
    """Experts are chosen by their logits: sigmoids of large ones are all 1."""

    Config: ClassVar[Any] = Llama4RouterConfig

    def find_standing(self, scores: Tensor, logits: Tensor) -> Tensor:
        is_plain = self.expert_bias is None and self.config.n_groups == 1
        return logits if is_plain else scores
