"""Grouped-query attention."""

from typing import Any, ClassVar

from torch import Tensor, nn

from monograph.config.configurable import Configurable
from monograph.kernels.rope import Rotation, apply_rope
from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.cache import LayerCache
from monograph.models.config import AttentionConfig, ResidualSpec, RopeConfig
from monograph.models.flex_attention import build_core
from monograph.models.linear import Linear
from monograph.models.norm import build_norm
from monograph.models.parallel_plan import ParallelPlan, plan_column_row_pair
from monograph.models.rope import compute_score_scale


class Attention(nn.Module, Configurable):
    """Several query heads share each key and value head. Head counts follow the weights, which may be a shard's."""

    Config: ClassVar[Any] = AttentionConfig
    sinks: Tensor | None
    """One score for each query head that belongs to no key; families that have them make it a parameter."""

    def __init__(
        self, config: AttentionConfig, *, residual: ResidualSpec, rope: RopeConfig, kind: AttentionKind = CAUSAL
    ) -> None:
        super().__init__()
        self.config = config
        self.head_dim, self.kind = config.find_head_dim(residual.dim), kind
        scale = config.find_score_scale(residual.dim) * compute_score_scale(rope)
        self.attend = build_core(config, kind, n_heads=config.n_heads, scale=scale)
        self.interleaved, self.kernels = rope.layout == "interleaved", residual.kernels
        self.wq = Linear(residual.dim, config.n_heads * self.head_dim, init_std=residual.init_std)
        self.wk = Linear(residual.dim, config.n_kv_heads * self.head_dim, init_std=residual.init_std)
        self.wv = Linear(residual.dim, config.n_kv_heads * self.head_dim, init_std=residual.init_std)
        self.wo = Linear(config.n_heads * self.head_dim, residual.dim, init_std=residual.out_std)
        self.register_parameter("sinks", None)
        self.q_norm = build_norm(residual, self.head_dim) if config.qk_norm else None
        self.k_norm = build_norm(residual, self.head_dim) if config.qk_norm else None

    @property
    def score_width(self) -> int:
        """Channels that one query meets at one position."""
        return self.config.n_heads * 2 * self.head_dim

    def count_score_keys(self, seq_len: int) -> tuple[float, float]:
        """Positions that one query meets: in reach, and on average."""
        return self.kind.count_keys(seq_len)

    def plan_parallel(self) -> ParallelPlan:
        """Every rank computes some of the heads."""
        return plan_column_row_pair(("wq.weight", "wk.weight", "wv.weight"), ("wo.weight",))

    def forward(self, x: Tensor, rotation: Rotation, segments: Any = None, cache: LayerCache | None = None) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        q, k = self.place(q, k, rotation)
        out: Tensor = self.wo(self.attend(q, k, v, segments, self.sinks, cache).flatten(2))
        return out

    def place(self, q: Tensor, k: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Queries and keys as they meet: normalised where that is asked for, with their positions."""
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = (apply_rope(x, rotation, interleaved=self.interleaved, kernels=self.kernels) for x in (q, k))
        return q, k
