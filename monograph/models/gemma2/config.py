"""The Gemma 2 family: windowed and full attention in turn, soft caps, GeGLU, norms before and after every layer.

Loads without torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from monograph.config.configurable import Configurable
from monograph.config.ranges import check_range
from monograph.errors import ConfigError
from monograph.models.config import (
    MAX_TOKENS,
    AttentionConfig,
    DecoderConfig,
    FeedForwardConfig,
    ResidualSpec,
    check_positive,
)
from monograph.plurals import counted

LayerKind = Literal["window", "full"]


def check_zero_or_range(config: Configurable.Config, name: str, *, why: str) -> None:
    """Refuse a number that is neither 0 nor one that float32 can divide by and multiply with."""
    if getattr(config, name) != 0:
        check_range(config, name, 1e-2, 1e6, why=why)


@dataclass(kw_only=True, slots=True)
class GemmaAttentionConfig(AttentionConfig):
    """Grouped-query attention with a scale of its own and a soft cap on its scores."""

    score_dim: float = 0.0
    """Scores are divided by the square root of this; 0 takes the channels of a head."""
    score_cap: float = 0.0
    """Scores become this * tanh(scores / this) before the softmax; 0 leaves them as they are."""

    def check(self) -> None:
        AttentionConfig.check(self)
        check_zero_or_range(self, "score_dim", why="scores are divided by its square root; 0 takes a head's channels")
        check_zero_or_range(self, "score_cap", why="scores are limited to it, in float32; 0 leaves them as they are")
        if self.score_cap and self.kernel in ("cudnn", "flash", "flex"):
            raise ConfigError(
                f"kernel is {self.kernel} and score_cap is {self.score_cap}",
                why="of the attention kernels only triton and reference cap scores",
                do="kernel auto, or with flex score_cap 0 and a score_mod that caps",
            )

    def find_score_scale(self, dim: int) -> float:
        """The factor on products of queries and keys in a model of width `dim`."""
        return (self.score_dim or self.find_head_dim(dim)) ** -0.5

    def find_score_cap(self) -> float:
        return self.score_cap


@dataclass(kw_only=True, slots=True)
class GegluConfig(FeedForwardConfig):
    """The gated feed-forward layer with GELU (in its tanh form) instead of SiLU."""

    owner: ClassVar[str] = "monograph.models.gemma2.layers:GegluFeedForward"


@dataclass(kw_only=True, slots=True)
class Gemma2Config(DecoderConfig):
    """A Gemma 2 model."""

    owner: ClassVar[str] = "monograph.models.gemma2.model:Gemma2"
    norms_per_block: ClassVar[int] = 4
    full_interval: ClassVar[int] = 2
    """Every so many layers one sees its whole text, where layer_kinds is empty."""
    window: int = 4096
    """Keys that a query of a windowed layer sees, its own included."""
    layer_kinds: tuple[LayerKind, ...] = ()
    """What the queries of each layer see, one entry for every layer; empty for windowed and full layers in turn."""
    logit_cap: float = 0.0
    """Logits become this * tanh(logits / this); 0 leaves them as they are."""
    attention: GemmaAttentionConfig
    """The attention of every block."""
    feed_forward: GegluConfig
    """The feed-forward layer of every block."""

    def check(self) -> None:
        DecoderConfig.check(self)
        self.attention.find_head_dim(self.dim)
        check_positive(self, "window", most=MAX_TOKENS)
        check_zero_or_range(self, "logit_cap", why="logits are limited to it, in float32; 0 leaves them as they are")
        if self.layer_kinds and len(self.layer_kinds) != self.n_layers:
            raise ConfigError(
                f"layer_kinds has {counted(len(self.layer_kinds), 'entry', 'entries')} and n_layers is {self.n_layers}",
                why="it says for every layer what its queries see",
                do="write one entry for every layer, or none for the family's usual order",
            )

    def residual(self) -> ResidualSpec:
        """The residual stream, as its parts see it; its norms scale channels by 1 + weight."""
        return replace(DecoderConfig.residual(self), offset_norms=True)

    def is_windowed(self, layer: int) -> bool:
        """Whether the queries of a layer see a window of keys only."""
        return self.find_layer_kinds()[layer] == "window"

    def find_layer_kinds(self) -> tuple[LayerKind, ...]:
        """What the queries of each layer see."""
        return self.layer_kinds or tuple(self.find_usual_kinds())

    def find_usual_kinds(self) -> Iterator[LayerKind]:
        """The family's usual order of layers."""
        for layer in range(self.n_layers):
            yield "window" if (layer + 1) % self.full_interval else "full"
