"""The DeepSeek family (V2 and V3): latent attention, dense first blocks, then experts. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar

from monograph.errors import ConfigError
from monograph.models.config import DecoderConfig, FeedForwardConfig, LatentAttentionConfig, MoeConfig


@dataclass(kw_only=True, slots=True)
class DeepseekV3Config(DecoderConfig):
    """A DeepSeek-V3 (or V2) model."""

    owner: ClassVar[str] = "monograph.models.deepseek_v3.model:DeepseekV3"
    n_dense_layers: int = 1
    """First blocks that have a feed-forward layer; the others have experts."""
    attention: LatentAttentionConfig
    """The attention of every block."""
    feed_forward: FeedForwardConfig
    """The feed-forward layer of the dense blocks."""
    moe: MoeConfig
    """The experts of the other blocks."""

    def check(self) -> None:
        DecoderConfig.check(self)
        if not 0 <= self.n_dense_layers <= self.n_layers:
            raise ConfigError(
                f"n_dense_layers is {self.n_dense_layers} and n_layers is {self.n_layers}",
                why="it counts the first layers, at most all of them",
            )
        if self.n_dense_layers < self.n_layers and self.moe.n_experts < 1:
            raise ConfigError(
                f"moe.n_experts is {self.moe.n_experts}",
                why=f"the last {self.n_layers - self.n_dense_layers} layers are MoE layers",
                do=f"write a number of experts, or n_dense_layers {self.n_layers}",
            )

    def find_moe(self) -> MoeConfig | None:
        """The experts of this model, None when every layer is dense."""
        return self.moe if self.n_dense_layers < self.n_layers else None

    def count_dense_layers(self) -> int:
        """Blocks with a feed-forward layer instead of experts."""
        return self.n_dense_layers
