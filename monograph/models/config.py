"""The configs of the model parts that all families share. Loads without torch.

Each one is named after the component it builds; a family (`models/<family>/config.py`) puts them together.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from monograph.axes import Axis
from monograph.config.configurable import Configurable
from monograph.config.ranges import FP32_MAX, FP32_TINY, check_range
from monograph.errors import ConfigError
from monograph.models.attention_kernel_config import AttentionKernelConfig
from monograph.models.load_balance_config import LoadBalanceConfig
from monograph.models.model_config import DividedSize, LatentSizes, ModelConfig

Kernels = Literal["auto", "plain", "fused"]
MAX_SIZE, MAX_COUNT, MAX_TOKENS = 1 << 20, 1 << 16, 1 << 24
"""The most channels of one kind; heads, layers or experts; vocabulary entries or positions: far above every published
model, and small enough that no tensor's size in bytes overflows 64 bits."""


def check_positive(config: Configurable.Config, *names: str, most: int = MAX_SIZE) -> None:
    """Refuse sizes and counts below 1 or above `most`, naming the field."""
    for name in names:
        if not 1 <= getattr(config, name) <= most:
            raise ConfigError(f"{name} is {getattr(config, name)}", why=f"it must be at least 1 and at most {most}")


@dataclass(frozen=True)
class ResidualSpec:
    """What every part attached to the residual stream needs to know about it."""

    dim: int
    """Its width."""
    norm_eps: float
    """Added to the mean square in every norm."""
    init_std: float
    """How wide the weights start that read from it."""
    out_std: float
    """How wide the weights start that write to it: narrower with depth, so that the sum over blocks does not grow."""
    kernels: Kernels = "auto"
    """Who computes norms, gates, rotations, heads and the experts' rows."""
    dropout: float = 0.0
    """Probability that training zeroes an element of what is added to it."""
    offset_norms: bool = False
    """Whether norms scale channels by 1 + weight."""


@dataclass(kw_only=True, slots=True)
class RopeConfig(Configurable.Config):
    """Rotary positions: a table of cosines and sines, optionally stretched beyond the length trained on."""

    owner: ClassVar[str] = "monograph.models.rope:Rope"
    max_seq_len: int = 2048
    """The longest sequence that the model accepts; a run makes tables for its own length."""
    theta: float = 10000.0
    """Base of the geometric series of wavelengths."""
    layout: Literal["half", "interleaved"] = "half"
    """Which two channels rotate together: (i, i + dim/2), or the neighbours (2i, 2i + 1)."""
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    """How slow frequencies are stretched for contexts longer than the original one."""
    factor: float = 1.0
    """How much longer the context becomes (linear, llama3, yarn)."""
    original_max_seq_len: int = 8192
    """The context length before stretching (llama3, yarn)."""
    low_freq_factor: float = 1.0
    """Wavelengths above original_max_seq_len / this are stretched fully (llama3)."""
    high_freq_factor: float = 4.0
    """Wavelengths below original_max_seq_len / this are left alone (llama3)."""
    beta_fast: float = 32.0
    """Frequencies turning more often than this within the original context are left alone (yarn)."""
    beta_slow: float = 1.0
    """Frequencies turning less often than this within the original context are stretched fully (yarn)."""
    truncate: bool = True
    """Begin and end the fading at whole channels, as the formula was first published (yarn)."""
    mscale: float = 1.0
    """Strength of yarn's correction of the rotated channels, relative to mscale_all_dim (yarn)."""
    mscale_all_dim: float = 0.0
    """Strength of yarn's correction of the attention scores; 0 leaves them alone (yarn)."""

    def check(self) -> None:
        check_positive(self, "max_seq_len", "original_max_seq_len", most=MAX_TOKENS)
        if self.theta < 1 or (self.theta == 1 and self.scaling == "yarn"):
            raise ConfigError(
                f"theta is {self.theta}",
                why="wavelengths are powers of it" + (", and yarn divides by its logarithm" * (self.theta == 1)),
                do="write a number above 1, such as 10000",
            )
        check_range(self, "factor", 1, FP32_MAX, why="RoPE scaling extends a context and never shortens it")
        for name in ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"):
            check_range(self, name, 1e-6, 1e6, why="it is a number of rotations within the original context")
        check_range(self, "mscale", 0, 100)
        check_range(self, "mscale_all_dim", 0, 100)
        for scaling, low, high in (
            ("llama3", "low_freq_factor", "high_freq_factor"),
            ("yarn", "beta_slow", "beta_fast"),
        ):
            start, stop = getattr(self, low), getattr(self, high)
            if self.scaling == scaling and (start > stop or (start == stop and scaling == "yarn")):
                raise ConfigError(
                    f"{low} is {start} and {high} is {stop}",
                    why="frequencies are interpolated between the two",
                    do=f"write a {low} below {high}",
                )


@dataclass(kw_only=True, slots=True)
class AttentionConfig(AttentionKernelConfig):
    """Grouped-query attention."""

    owner: ClassVar[str] = "monograph.models.attention:Attention"
    n_heads: int
    """Query heads."""
    n_kv_heads: int
    """Key and value heads; each serves n_heads / n_kv_heads query heads."""
    head_dim: int = 0
    """Channels of one head; 0 divides the model's width by n_heads."""
    qk_norm: bool = False
    """Normalise every query and key head before rotating it."""

    def check(self) -> None:
        self.check_kernel()
        check_positive(self, "n_heads", "n_kv_heads", most=MAX_COUNT)
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_heads is {self.n_heads} and n_kv_heads is {self.n_kv_heads}",
                why="every key and value head serves the same number of query heads",
                do="write an n_kv_heads that divides n_heads",
            )
        if not 0 <= self.head_dim <= MAX_SIZE or self.head_dim % 2:
            raise ConfigError(
                f"head_dim is {self.head_dim}",
                why="RoPE rotates channels in pairs",
                do=f"write an even number of at most {MAX_SIZE}, or 0",
            )

    def find_divided_sizes(self) -> Iterator[DividedSize]:
        """Heads are shared among tensor-parallel ranks, and in an exchange among context-parallel ones."""
        for axis in (Axis.TP, Axis.CP):
            yield DividedSize(axis, "n_heads", self.n_heads)
            yield DividedSize(axis, "n_kv_heads", self.n_kv_heads, is_repeated=axis is Axis.CP)

    def find_head_dim(self, dim: int) -> int:
        """Channels of one head in a model of width `dim`."""
        if self.head_dim:
            return self.head_dim
        if dim % self.n_heads or dim // self.n_heads % 2:
            raise ConfigError(
                f"dim is {dim} and attention.n_heads is {self.n_heads}",
                why=f"{dim} / {self.n_heads} is not a whole, even number of channels per head",
                do="change n_heads or dim, or write attention.head_dim",
            )
        return dim // self.n_heads


@dataclass(kw_only=True, slots=True)
class LatentAttentionConfig(AttentionKernelConfig):
    """Multi-head latent attention: keys and values are rebuilt from a small shared latent."""

    owner: ClassVar[str] = "monograph.models.latent_attention:LatentAttention"
    n_heads: int
    """Heads."""
    q_lora_rank: int = 0
    """Width of the query latent; 0 projects queries directly."""
    kv_lora_rank: int
    """Width of the latent that keys and values share."""
    qk_nope_head_dim: int
    """Channels of a query/key head without position."""
    qk_rope_head_dim: int
    """Rotated channels of a query/key head; the rotated key is shared by all heads."""
    v_head_dim: int
    """Channels of a value head."""
    latent_norm_eps: float = 1e-6
    """Added to the mean square in the norms of the latents; DeepSeek's models use 1e-6, whatever norm_eps is."""

    def check(self) -> None:
        self.check_kernel()
        check_positive(self, "n_heads", most=MAX_COUNT)
        check_positive(self, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        check_range(self, "latent_norm_eps", FP32_TINY, FP32_MAX, why="norms add it in float32")
        if not 0 <= self.q_lora_rank <= MAX_SIZE:
            raise ConfigError(
                f"q_lora_rank is {self.q_lora_rank}",
                why=f"it is a width of at most {MAX_SIZE}",
                do="write 0 for a direct projection",
            )
        if self.qk_rope_head_dim % 2:
            what = f"qk_rope_head_dim is {self.qk_rope_head_dim}"
            raise ConfigError(what, why="RoPE rotates channels in pairs", do="write an even number")

    def find_divided_sizes(self) -> Iterator[DividedSize]:
        """Heads are shared among tensor-parallel ranks, and in an exchange among context-parallel ones."""
        for axis in (Axis.TP, Axis.CP):
            yield DividedSize(axis, "n_heads", self.n_heads)

    def find_latent_sizes(self) -> LatentSizes:
        """What ranks that share sequences may gather instead of keys and values."""
        shared = self.qk_rope_head_dim
        return LatentSizes(self.kv_lora_rank, shared, self.n_heads, self.qk_nope_head_dim + shared, self.v_head_dim)


@dataclass(kw_only=True, slots=True)
class FeedForwardConfig(Configurable.Config):
    """The gated feed-forward layer (SwiGLU) of a dense block."""

    owner: ClassVar[str] = "monograph.models.feed_forward:FeedForward"
    hidden_dim: int
    """Width between the two projections."""

    def check(self) -> None:
        check_positive(self, "hidden_dim")

    def find_divided_sizes(self) -> Iterator[DividedSize]:
        """Hidden channels are shared among tensor-parallel ranks."""
        yield DividedSize(Axis.TP, "hidden_dim", self.hidden_dim)


@dataclass(kw_only=True, slots=True)
class RouterConfig(Configurable.Config):
    """Which experts a token goes to, and with which weights."""

    owner: ClassVar[str] = "monograph.models.router:Router"
    top_k: int = 1
    """Experts per token."""
    score: Literal["softmax", "sigmoid"] = "softmax"
    """How gate logits become scores (always in fp32)."""
    n_groups: int = 1
    """Groups the experts are divided into; 1 means no group limit."""
    top_groups: int = 1
    """Groups a token may choose experts from."""
    group_score: Literal["top2_sum", "max"] = "top2_sum"
    """Score of a group: the sum of its two best scores (DeepSeek-V3) or its best one (V2)."""
    norm: bool = True
    """Divide the chosen scores by their sum."""
    scale: float = 1.0
    """Multiply the chosen scores by this."""
    expert_bias: bool = False
    """Keep a bias per expert that steers the selection (never the weights) towards an even load."""
    bias_update_rate: float = 1e-3
    """How far one step moves a bias towards an even load; 0 freezes the biases."""
    force_balance: bool = False
    """Ignore the scores when choosing and assign tokens evenly; for measuring speed only."""

    def check(self) -> None:
        check_positive(self, "top_k", "n_groups", "top_groups", most=MAX_COUNT)
        if self.top_groups > self.n_groups:
            raise ConfigError(
                f"top_groups is {self.top_groups} and n_groups is {self.n_groups}",
                why="a token chooses top_groups of n_groups",
                do=f"--model.moe.router.top_groups {self.n_groups}",
            )
        check_range(self, "scale", 1e-4, 1e4, why="it scales the experts' outputs")
        check_range(self, "bias_update_rate", 0, 1, why="scores lie between 0 and 1")

    def check_experts(self, n_experts: int) -> None:
        """Refuse a number of experts that this selection cannot choose from."""
        if n_experts % self.n_groups:
            raise ConfigError(
                f"n_experts is {n_experts} and router.n_groups is {self.n_groups}",
                why="all groups have the same size",
                do=f"--model.moe.n_experts {-(-n_experts // self.n_groups) * self.n_groups}",
            )
        group_size = n_experts // self.n_groups
        if self.n_groups > 1 and self.group_score == "top2_sum" and group_size < 2:
            raise ConfigError(
                f"n_experts is {n_experts} and router.n_groups is {self.n_groups}",
                why="a group's score is the sum of its two best experts, and each group has one",
                do="write fewer groups, or router.group_score max",
            )
        if self.top_k > group_size * self.top_groups:
            raise ConfigError(
                f"router.top_k is {self.top_k} with n_experts {n_experts}, n_groups {self.n_groups} and top_groups "
                f"{self.top_groups}",
                why=f"a token may choose from {group_size * self.top_groups} experts",
                do=f"--model.moe.router.top_k {group_size * self.top_groups} or less",
            )


@dataclass(kw_only=True, slots=True)
class ExpertsConfig(Configurable.Config):
    """How the routed experts compute."""

    owner: ClassVar[str] = "monograph.models.experts:Experts"
    backend: Literal["auto", "grouped_mm", "grouped_loop", "loop"] = "auto"
    """grouped_mm: torch's kernel, bf16, no host copy; grouped_loop: any dtype; auto: the first that fits; loop: one
    expert after the other, op by op."""


@dataclass(kw_only=True, slots=True)
class MoeConfig(Configurable.Config):
    """A mixture of experts in place of the feed-forward layer."""

    owner: ClassVar[str] = "monograph.models.moe:Moe"
    n_experts: int = 0
    """Routed experts; 0 means that every layer is dense."""
    hidden_dim: int = 1
    """Width between the two projections of one expert."""
    n_shared_experts: int = 0
    """Experts that see every token, computed as one of this many times the width."""
    router: RouterConfig = field(default_factory=RouterConfig)
    """The choice of experts."""
    balance: LoadBalanceConfig = field(default_factory=LoadBalanceConfig)
    """Auxiliary losses for an even load."""
    experts: ExpertsConfig = field(default_factory=ExpertsConfig)
    """The experts' computation."""

    def check(self) -> None:
        for name in ("n_experts", "n_shared_experts"):
            if not 0 <= getattr(self, name) <= MAX_COUNT:
                raise ConfigError(f"{name} is {getattr(self, name)}", why=f"it is a count of at most {MAX_COUNT}")
        check_positive(self, "hidden_dim")
        if self.n_experts:
            self.router.check_experts(self.n_experts)
            self.balance.check_groups(self.router.n_groups)

    def find_divided_sizes(self) -> Iterator[DividedSize]:
        """Experts over expert-parallel ranks, hidden channels over expert-tensor-parallel and tensor-parallel ones."""
        if not self.n_experts:
            return
        yield DividedSize(Axis.EP, "n_experts", self.n_experts)
        yield DividedSize(Axis.ETP, "hidden_dim", self.hidden_dim)
        if self.n_shared_experts:
            yield DividedSize(Axis.TP, "hidden_dim x n_shared_experts", self.hidden_dim * self.n_shared_experts)


@dataclass(kw_only=True, slots=True)
class LossConfig(Configurable.Config):
    """Cross entropy over slices of tokens."""

    owner: ClassVar[str] = "monograph.models.loss:ChunkedCrossEntropy"
    chunk_tokens: int = 2048
    """Tokens whose fp32 logits exist at one time."""

    def check(self) -> None:
        check_positive(self, "chunk_tokens", most=1 << 40)


@dataclass(kw_only=True, slots=True)
class DecoderConfig(ModelConfig):
    """What every decoder-only model has; a family adds its attention and feed-forward layers."""

    is_base: ClassVar[bool] = True
    fits_positions: ClassVar[bool] = True
    vocab_size: int
    """Rows of the embedding: token ids run below it."""
    dim: int
    """Width of the residual stream."""
    n_layers: int
    """Blocks."""
    norm_eps: float = 1e-5
    """Added to the mean square in every RMS norm."""
    tied_embeddings: bool = False
    """Use the embedding as the output projection too."""
    mask: Literal["causal", "document"] = "causal"
    """What a token sees: everything before it, or only its own packed document."""
    max_documents: int = 0
    """Documents that one sequence may have (mask document); one with more is an error. 0 allows any number; with
    attention.kernel flash, whose workspace grows with it, one for every 32 tokens, and 16 in any case."""
    dropout: float = 0.0
    """Probability that training zeroes an element of what attention or feed-forward adds to the residual stream; the
    same elements on every mesh, recomputed or not."""
    init_std: float = 0.02
    """Standard deviation of the initial weights; what writes to the residual stream starts smaller with depth."""
    kernels: Kernels = "auto"
    """fused: norms, gates, rotations, heads, experts' rows, the loss (if whole) by Triton kernels; plain: torch's."""
    rope: RopeConfig = field(default_factory=RopeConfig)
    """Rotary positions."""
    loss: LossConfig = field(default_factory=LossConfig)
    """The training loss."""

    def check(self) -> None:
        check_positive(self, "vocab_size", most=MAX_TOKENS)
        check_positive(self, "dim")
        check_positive(self, "n_layers", most=MAX_COUNT)
        check_range(self, "norm_eps", FP32_TINY, FP32_MAX, why="norms add it in float32")
        check_range(self, "init_std", 1e-30, 1, why="it is the standard deviation of weights")
        if not 0 <= self.max_documents <= MAX_TOKENS:
            raise ConfigError(f"max_documents must be >= 0 and <= {MAX_TOKENS}, got {self.max_documents}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be >= 0 and < 1, got {self.dropout}", why="it is a probability")

    def residual(self) -> ResidualSpec:
        """The residual stream, as its parts see it; two of them write to it in every block."""
        out_std = self.init_std / math.sqrt(2 * self.n_layers)
        return ResidualSpec(self.dim, self.norm_eps, self.init_std, out_std, self.kernels, self.dropout)

    def find_units(self) -> tuple[str, ...]:
        return ("embedding", *(f"layers.{number}" for number in range(self.n_layers)), "head")

    def count_dense_layers(self) -> int:
        """Blocks with a feed-forward layer instead of experts."""
        return self.n_layers if self.find_moe() is None else 0

    def find_bias_update_rate(self) -> float:
        """How far one step moves the experts' selection biases; 0 where the model keeps none."""
        moe = self.find_moe()
        return moe.router.bias_update_rate if moe is not None and moe.router.expert_bias else 0.0
