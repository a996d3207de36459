"""The gpt_oss family: windowed and full attention in turn, sinks, biases, experts with a clamped SwiGLU.

Loads without torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from monograph.axes import Axis
from monograph.config.ranges import check_range
from monograph.errors import ConfigError
from monograph.models.config import (
    MAX_TOKENS,
    AttentionConfig,
    DecoderConfig,
    ExpertsConfig,
    MoeConfig,
    RouterConfig,
    check_positive,
)
from monograph.models.model_config import DividedSize
from monograph.plurals import counted

LayerKind = Literal["window", "full"]


@dataclass(kw_only=True, slots=True)
class SinkAttentionConfig(AttentionConfig):
    """Grouped-query attention with biases and a learned sink for every query head."""

    owner: ClassVar[str] = "monograph.models.gpt_oss.attention:SinkAttention"

    def check(self) -> None:
        AttentionConfig.check(self)
        if self.qk_norm:
            raise ConfigError("qk_norm is on", why="gpt_oss has no norms of queries and keys", do="qk_norm false")
        if self.is_flex:
            raise ConfigError(
                "kernel is flex", why="FlexAttention has no sinks, and every head of gpt_oss has one", do="kernel auto"
            )

    def count_parameters(self, dim: int) -> int:
        """Parameters of one block's attention in a model of width `dim`."""
        queries = self.find_head_dim(dim) * self.n_heads
        both = 2 * self.find_head_dim(dim) * self.n_kv_heads
        return (queries + both) * (dim + 1) + (queries + 1) * dim + self.n_heads


@dataclass(kw_only=True, slots=True)
class BiasedRouterConfig(RouterConfig):
    """A router whose gate has a bias."""

    owner: ClassVar[str] = "monograph.models.gpt_oss.router:BiasedRouter"


@dataclass(kw_only=True, slots=True)
class ClampedExpertsConfig(ExpertsConfig):
    """Experts with biases and a clamped SwiGLU: (up + 1) * gate * sigmoid(alpha * gate)."""

    owner: ClassVar[str] = "monograph.models.gpt_oss.experts:ClampedExperts"
    alpha: float = 1.702
    """How steep the gate's sigmoid is."""
    limit: float = 7.0
    """The gate is clamped from above to this, the up projection to it from both sides."""

    def check(self) -> None:
        check_range(self, "alpha", 1e-3, 1e3, why="it multiplies the gate inside of a sigmoid")
        check_range(self, "limit", 1e-3, 1e6, why="activations beyond it are clamped")


@dataclass(kw_only=True, slots=True)
class BiasedMoeConfig(MoeConfig):
    """A mixture of experts with biases."""

    owner: ClassVar[str] = "monograph.models.gpt_oss.moe:BiasedMoe"
    router: BiasedRouterConfig = field(default_factory=BiasedRouterConfig)
    """The choice of experts."""
    experts: ClampedExpertsConfig = field(default_factory=ClampedExpertsConfig)
    """The experts' computation."""

    def check(self) -> None:
        MoeConfig.check(self)
        if self.n_shared_experts:
            raise ConfigError(f"n_shared_experts is {self.n_shared_experts}", why="gpt_oss has none", do="write 0")

    def find_divided_sizes(self) -> Iterator[DividedSize]:
        """Experts over expert-parallel ranks, hidden channels over expert-tensor-parallel ones."""
        yield DividedSize(Axis.EP, "n_experts", self.n_experts)
        yield DividedSize(Axis.ETP, "hidden_dim", self.hidden_dim)

    def count_parameters(self, dim: int) -> tuple[int, int]:
        """Parameters of one layer's experts in all, and those that one token uses."""
        gate = self.n_experts * (dim + 1)
        expert = 2 * self.hidden_dim * (dim + 1) + (self.hidden_dim + 1) * dim
        return gate + self.n_experts * expert, gate + self.router.top_k * expert


@dataclass(kw_only=True, slots=True)
class GptOssConfig(DecoderConfig):
    """A gpt_oss model."""

    owner: ClassVar[str] = "monograph.models.gpt_oss.model:GptOss"
    window: int = 128
    """Keys that a query of a windowed layer sees, its own included."""
    layer_kinds: tuple[LayerKind, ...] = ()
    """What the queries of each layer see, one entry for every layer; empty for windowed and full layers in turn."""
    attention: SinkAttentionConfig
    """The attention of every block."""
    moe: BiasedMoeConfig
    """The experts of every block."""

    def check(self) -> None:
        DecoderConfig.check(self)
        self.attention.find_head_dim(self.dim)
        check_positive(self, "window", most=MAX_TOKENS)
        if self.layer_kinds and len(self.layer_kinds) != self.n_layers:
            raise ConfigError(
                f"layer_kinds has {counted(len(self.layer_kinds), 'entry', 'entries')} and n_layers is {self.n_layers}",
                why="it names the attention of every layer",
                do="write one entry for every layer, or none for windowed and full layers in turn",
            )
        if self.moe.n_experts < 1:
            raise ConfigError(
                f"moe.n_experts is {self.moe.n_experts}",
                why="every layer of this family is an MoE layer",
                do="write a number of experts",
            )

    def find_moe(self) -> BiasedMoeConfig:
        """The experts of this model."""
        return self.moe

    def is_windowed(self, layer: int) -> bool:
        """Whether the queries of a layer see a window of keys only."""
        return self.layer_kinds[layer] == "window" if self.layer_kinds else layer % 2 == 0
