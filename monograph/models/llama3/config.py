"""The Llama 3 family: grouped-query attention and a gated feed-forward layer. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar

from monograph.models.config import AttentionConfig, DecoderConfig, FeedForwardConfig


@dataclass(kw_only=True, slots=True)
class Llama3Config(DecoderConfig):
    """A Llama 3 model."""

    owner: ClassVar[str] = "monograph.models.llama3.model:Llama3"
    attention: AttentionConfig
    """The attention of every block."""
    feed_forward: FeedForwardConfig
    """The feed-forward layer of every block."""

    def check(self) -> None:
        DecoderConfig.check(self)
        self.attention.find_head_dim(self.dim)
