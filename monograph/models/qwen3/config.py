"""The Qwen3 family: normalised queries and keys; dense, or a mixture of experts in every block. Loads without torch."""

from dataclasses import dataclass, field
from typing import ClassVar

from monograph.models.config import AttentionConfig, DecoderConfig, FeedForwardConfig, MoeConfig


@dataclass(kw_only=True, slots=True)
class Qwen3Config(DecoderConfig):
    """A Qwen3 model."""

    owner: ClassVar[str] = "monograph.models.qwen3.model:Qwen3"
    attention: AttentionConfig
    """The attention of every block."""
    feed_forward: FeedForwardConfig
    """The feed-forward layer of every block of a dense model."""
    moe: MoeConfig = field(default_factory=MoeConfig)
    """The experts of every block, when there are any; they replace the feed-forward layer."""

    def check(self) -> None:
        DecoderConfig.check(self)
        self.attention.find_head_dim(self.dim)

    def find_bias_update_rate(self) -> float:
        """How far one step moves the experts' selection biases; 0 where the model keeps none."""
        return self.moe.router.bias_update_rate if self.moe.n_experts and self.moe.router.expert_bias else 0.0
