"""Grouped-query attention, and the attention that all kinds of attention share."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from monograph.config.configurable import Configurable
from monograph.kernels.rope import Rotation, apply_rope
from monograph.models.config import AttentionConfig, ResidualSpec, RopeConfig, SdpaConfig
from monograph.models.linear import Linear
from monograph.models.norm import RMSNorm
from monograph.models.parallel_plan import ParallelPlan, plan_column_row_pair
from monograph.models.rope import compute_score_scale

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def build_document_mask(documents: Tensor) -> Tensor:
    """Which token sees which: those before it in its own document. bool [batch, 1, sequence, sequence]."""
    seq_len = documents.shape[1]
    same = documents[:, :, None] == documents[:, None, :]
    before = torch.ones(seq_len, seq_len, dtype=torch.bool, device=documents.device).tril()
    return (same & before).unsqueeze(1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, config: SdpaConfig) -> Tensor:
    """Attention of q over k, v, all [batch, sequence, heads, channels]; causal without a mask.

    Fewer key than query heads are shared among the query heads, and v may have other channels than q and k.
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel([BACKENDS[name] for name in config.backends], set_priority=True):
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    return out.transpose(1, 2)


class Attention(nn.Module, Configurable):
    """Several query heads share each key and value head. Head counts follow the weights, which may be a shard's."""

    Config: ClassVar[Any] = AttentionConfig

    def __init__(self, config: AttentionConfig, *, residual: ResidualSpec, rope: RopeConfig) -> None:
        super().__init__()
        self.config = config
        self.head_dim = config.find_head_dim(residual.dim)
        self.scale = self.head_dim**-0.5 * compute_score_scale(rope)
        self.interleaved, self.kernels = rope.layout == "interleaved", residual.kernels
        self.wq = Linear(residual.dim, config.n_heads * self.head_dim, init_std=residual.init_std)
        self.wk = Linear(residual.dim, config.n_kv_heads * self.head_dim, init_std=residual.init_std)
        self.wv = Linear(residual.dim, config.n_kv_heads * self.head_dim, init_std=residual.init_std)
        self.wo = Linear(config.n_heads * self.head_dim, residual.dim, init_std=residual.out_std)
        self.q_norm = RMSNorm(self.head_dim, residual.norm_eps, residual.kernels) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, residual.norm_eps, residual.kernels) if config.qk_norm else None

    @property
    def score_width(self) -> int:
        """Channels that one query meets at one position."""
        return self.config.n_heads * 2 * self.head_dim

    def plan_parallel(self) -> ParallelPlan:
        """Every rank computes some of the heads."""
        return plan_column_row_pair(("wq.weight", "wk.weight", "wv.weight"), ("wo.weight",))

    def forward(self, x: Tensor, rotation: Rotation, mask: Tensor | None = None) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = (apply_rope(x, rotation, interleaved=self.interleaved, kernels=self.kernels) for x in (q, k))
        return self.wo(attend(q, k, v, mask, scale=self.scale, config=self.config.sdpa).flatten(2))
