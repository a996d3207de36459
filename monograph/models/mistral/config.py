"""The Mistral family: grouped-query attention, in a window or full, and a gated feed-forward layer.

Loads without torch.
"""

from dataclasses import dataclass
from typing import ClassVar

from monograph.errors import ConfigError
from monograph.models.config import MAX_TOKENS, AttentionConfig, DecoderConfig, FeedForwardConfig


@dataclass(kw_only=True, slots=True)
class MistralConfig(DecoderConfig):
    """A Mistral model."""

    owner: ClassVar[str] = "monograph.models.mistral.model:Mistral"
    window: int = 0
    """Keys that a query sees in every layer, its own included; 0 for all before it."""
    attention: AttentionConfig
    """The attention of every block."""
    feed_forward: FeedForwardConfig
    """The feed-forward layer of every block."""

    def check(self) -> None:
        DecoderConfig.check(self)
        self.attention.find_head_dim(self.dim)
        if not 0 <= self.window <= MAX_TOKENS:
            raise ConfigError(f"window must be >= 0 and <= {MAX_TOKENS}, got {self.window}")
