"""The Llama 4 family: layers with RoPE and chunks, and layers with neither; experts that scale what they read.

Loads without torch.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from monograph.config.ranges import check_range
from monograph.errors import ConfigError
from monograph.models.config import (
    MAX_COUNT,
    MAX_TOKENS,
    AttentionConfig,
    DecoderConfig,
    ExpertsConfig,
    FeedForwardConfig,
    MoeConfig,
    RouterConfig,
    check_positive,
)


@dataclass(kw_only=True, slots=True)
class Llama4AttentionConfig(AttentionConfig):
    """Grouped-query attention, with RoPE or with a temperature that grows with the position."""

    owner: ClassVar[str] = "monograph.models.llama4.attention:Llama4Attention"
    qk_norm: bool = True
    """Normalise every query and key head after rotating it, without weights (layers with RoPE)."""
    temperature_tuning: bool = True
    """Sharpen attention with the position (layers without RoPE)."""
    floor_scale: int = 8192
    """Tokens after which the sharpness grows by a step (temperature tuning)."""
    attn_scale: float = 0.1
    """How much it grows: the scores' factor is 1 + this * log(1 + steps) (temperature tuning)."""

    def check(self) -> None:
        AttentionConfig.check(self)
        check_positive(self, "floor_scale", most=MAX_TOKENS)
        check_range(self, "attn_scale", 0, 100, why="it scales a logarithm")

    def count_parameters(self, dim: int) -> int:
        """Parameters of one block's attention in a model of width `dim`."""
        return 2 * dim * self.find_head_dim(dim) * (self.n_heads + self.n_kv_heads)


@dataclass(kw_only=True, slots=True)
class Llama4RouterConfig(RouterConfig):
    """Sigmoid scores, used as they are."""

    owner: ClassVar[str] = "monograph.models.llama4.router:Llama4Router"


@dataclass(kw_only=True, slots=True)
class PairedExpertsConfig(ExpertsConfig):
    """Experts whose two input projections are one matmul."""

    owner: ClassVar[str] = "monograph.models.llama4.experts:PairedExperts"


@dataclass(kw_only=True, slots=True)
class Llama4MoeConfig(MoeConfig):
    """A mixture of experts that scales what an expert reads, instead of what it answers."""

    owner: ClassVar[str] = "monograph.models.llama4.moe:InputScaledMoe"
    router: Llama4RouterConfig = field(default_factory=Llama4RouterConfig)
    """The choice of experts."""
    experts: PairedExpertsConfig = field(default_factory=PairedExpertsConfig)
    """The experts' computation."""


@dataclass(kw_only=True, slots=True)
class Llama4Config(DecoderConfig):
    """A Llama 4 model: its text part."""

    owner: ClassVar[str] = "monograph.models.llama4.model:Llama4"
    chunk: int = 8192
    """Tokens of a chunk: a query of a layer with RoPE sees its own chunk only."""
    no_rope_interval: int = 4
    """Every so many layers one has no RoPE and sees its whole text."""
    no_rope_layers: tuple[int, ...] = ()
    """Numbers of the layers without RoPE, from 0; empty for every no_rope_interval-th."""
    moe_interval: int = 1
    """Every so many layers one has experts."""
    moe_layers: tuple[int, ...] = ()
    """Numbers of the layers with experts, from 0; empty for every moe_interval-th."""
    attention: Llama4AttentionConfig
    """The attention of every block."""
    feed_forward: FeedForwardConfig
    """The feed-forward layer of the blocks without experts."""
    moe: Llama4MoeConfig
    """The experts of the other blocks."""

    def check(self) -> None:
        DecoderConfig.check(self)
        self.attention.find_head_dim(self.dim)
        check_positive(self, "chunk", most=MAX_TOKENS)
        check_positive(self, "no_rope_interval", "moe_interval", most=MAX_COUNT + 1)
        for name in ("no_rope_layers", "moe_layers"):
            given = getattr(self, name)
            if len(set(given)) < len(given) or not all(0 <= layer < self.n_layers for layer in given):
                raise ConfigError(
                    f"{name} is {', '.join(map(str, given))} and n_layers is {self.n_layers}",
                    why="it lists layers by their number, from 0, each once",
                    do=f"write numbers below {self.n_layers}, or none to use {name.replace('layers', 'interval')}",
                )
        if not any(map(self.has_experts, range(self.n_layers))):
            raise ConfigError(
                f"moe_interval is {self.moe_interval} and n_layers is {self.n_layers}",
                why="no layer would have experts",
                do=f"--model.moe_interval {self.n_layers} or less",
            )
        if self.moe.n_experts < 1:
            raise ConfigError(
                f"moe.n_experts is {self.moe.n_experts}", why="this family has experts", do="write 1 or more"
            )

    def find_moe(self) -> Llama4MoeConfig:
        """The experts of this model."""
        return self.moe

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts in place of a feed-forward layer."""
        return layer in self.moe_layers if self.moe_layers else (layer + 1) % self.moe_interval == 0

    def has_rope(self, layer: int) -> bool:
        """Whether a layer has RoPE and chunks."""
        return layer not in self.no_rope_layers if self.no_rope_layers else (layer + 1) % self.no_rope_interval != 0

    def count_dense_layers(self) -> int:
        """Layers with a feed-forward layer."""
        return sum(not self.has_experts(layer) for layer in range(self.n_layers))
