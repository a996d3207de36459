"""Grouped-query attention, and the core that all attention modules share."""

from typing import Any, ClassVar

from torch import Tensor, nn

from monograph.config.configurable import Configurable
from monograph.kernels.attention import attention
from monograph.kernels.cached_attention import cached_attention
from monograph.kernels.rope import Rotation, apply_rope
from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.cache import LayerCache
from monograph.models.config import AttentionConfig, AttentionKernel, ResidualSpec, RopeConfig
from monograph.models.linear import Linear
from monograph.models.norm import RMSNorm
from monograph.models.parallel_plan import ModuleRule, ParallelForm, ParallelPlan, plan_column_row_pair
from monograph.models.rope import compute_score_scale


class AttentionCore(nn.Module):
    """Attention of queries over keys and values; parallelism puts another in its place."""

    def __init__(self, kind: AttentionKind, *, scale: float, kernel: AttentionKernel = "auto") -> None:
        super().__init__()
        self.kind, self.scale, self.kernel = kind, scale, kernel

    def plan_parallel(self) -> ParallelPlan:
        """With context parallelism every rank has a part of each sequence."""
        return ParallelPlan(modules=(ModuleRule(pattern="", form=ParallelForm.SHARED_SEQUENCES),))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        segments: Tensor | None = None,
        sinks: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """The output [batch, sequence, heads, value channels] for q, k and v, all [batch, sequence, heads, channels].

        `segments` is the table of the kind (models/segments.py); without one, a sequence is one text. With a cache,
        these tokens follow those that it has, and see them.
        """
        if cache is not None:
            keys, values = cache.append(k.transpose(1, 2), v.transpose(1, 2))
            if not cache.is_empty:
                return cached_attention(q, keys, values, cache.mask(q.shape[1]), sinks, scale=self.scale)
        table = None if segments is None else segments[:, 0]
        kind = self.kind
        return attention(
            q, k, v, table, sinks, scale=self.scale, causal=kind.causal, window=kind.window, kernel=self.kernel
        )


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
        self.attend = AttentionCore(kind, scale=self.head_dim**-0.5 * compute_score_scale(rope), kernel=config.kernel)
        self.interleaved, self.kernels = rope.layout == "interleaved", residual.kernels
        self.wq = Linear(residual.dim, config.n_heads * self.head_dim, init_std=residual.init_std)
        self.wk = Linear(residual.dim, config.n_kv_heads * self.head_dim, init_std=residual.init_std)
        self.wv = Linear(residual.dim, config.n_kv_heads * self.head_dim, init_std=residual.init_std)
        self.wo = Linear(config.n_heads * self.head_dim, residual.dim, init_std=residual.out_std)
        self.register_parameter("sinks", None)
        self.q_norm = RMSNorm(self.head_dim, residual.norm_eps, residual.kernels) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, residual.norm_eps, residual.kernels) if config.qk_norm else None

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

    def forward(
        self, x: Tensor, rotation: Rotation, segments: Tensor | None = None, cache: LayerCache | None = None
    ) -> Tensor:
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
