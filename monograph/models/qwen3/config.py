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

    def find_moe(self) -> MoeConfig | None:
        """The experts of this model, None when every layer is dense."""
        return self.moe if self.moe.n_experts else None
