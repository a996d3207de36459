"""The Qwen2.5 family: like Llama 3, with biases on queries, keys and values. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar

from monograph.models.config import AttentionConfig, DecoderConfig, FeedForwardConfig


@dataclass(kw_only=True, slots=True)
class BiasedAttentionConfig(AttentionConfig):
    """Grouped-query attention whose queries, keys and values have biases."""

    owner: ClassVar[str] = "monograph.models.qwen2_5.attention:BiasedAttention"

    def count_parameters(self, dim: int) -> int:
        """Parameters of one block's attention in a model of width `dim`."""
        channels = self.find_head_dim(dim) * (self.n_heads + 2 * self.n_kv_heads)
        norms = 2 * self.find_head_dim(dim) if self.qk_norm else 0
        return channels * (dim + 1) + self.n_heads * self.find_head_dim(dim) * dim + norms


@dataclass(kw_only=True, slots=True)
class Qwen2Config(DecoderConfig):
    """A Qwen2.5 model."""

    owner: ClassVar[str] = "monograph.models.qwen2_5.model:Qwen2"
    attention: BiasedAttentionConfig
    """The attention of every block."""
    feed_forward: FeedForwardConfig
    """The feed-forward layer of every block."""

    def check(self) -> None:
        DecoderConfig.check(self)
        self.attention.find_head_dim(self.dim)
