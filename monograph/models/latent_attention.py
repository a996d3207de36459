"""Multi-head latent attention: keys and values come from one small latent, and extra channels carry RoPE."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from monograph.config.configurable import Configurable
from monograph.kernels.cached_attention import cached_attention
from monograph.kernels.heads import join_keys, rope_tail
from monograph.kernels.rope import Rotation, apply_rope
from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.cache import LayerCache
from monograph.models.config import LatentAttentionConfig, ResidualSpec, RopeConfig
from monograph.models.flex_attention import build_core
from monograph.models.linear import Linear
from monograph.models.norm import RMSNorm
from monograph.models.parallel_plan import ParallelForm, ParallelPlan, plan_column_row_pair
from monograph.models.rope import compute_score_scale


class LatentAttention(nn.Module, Configurable):
    """Queries (optionally) and keys/values pass through latents; one rotated key is shared by all heads.

    A query/key head is [channels without position | rotated channels]; value heads have their own width. Head counts
    follow the weights, which may be a shard's.
    """

    Config = LatentAttentionConfig

    def __init__(
        self, config: LatentAttentionConfig, *, residual: ResidualSpec, rope: RopeConfig, kind: AttentionKind = CAUSAL
    ) -> None:
        super().__init__()
        self.config = config
        self.qk_head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
        scale = self.qk_head_dim**-0.5 * compute_score_scale(rope)
        self.attend = build_core(config, kind, n_heads=config.n_heads, scale=scale)
        self.interleaved, self.kernels = rope.layout == "interleaved", residual.kernels
        dim, std, rank, eps = residual.dim, residual.init_std, config.q_lora_rank, config.latent_norm_eps
        if rank:
            self.wq_a = Linear(dim, rank, init_std=std)
            self.q_norm = RMSNorm(rank, eps, residual.kernels)
            self.wq_b = Linear(rank, config.n_heads * self.qk_head_dim, init_std=std)
        else:
            self.wq = Linear(dim, config.n_heads * self.qk_head_dim, init_std=std)
        self.wkv_a = Linear(dim, config.kv_lora_rank + config.qk_rope_head_dim, init_std=std)
        self.kv_norm = RMSNorm(config.kv_lora_rank, eps, residual.kernels)
        self.wkv_b = Linear(
            config.kv_lora_rank, config.n_heads * (config.qk_nope_head_dim + config.v_head_dim), init_std=std
        )
        self.attend_shared: nn.Module | None = None
        """What attends to the latents of all ranks, where these share sequences and gather latents."""
        self.wo = Linear(config.n_heads * config.v_head_dim, dim, init_std=residual.out_std)

    @property
    def score_width(self) -> int:
        """Channels that one query meets at one position."""
        return self.config.n_heads * (self.qk_head_dim + self.config.v_head_dim)

    def plan_parallel(self) -> ParallelPlan:
        """Every rank computes some of the heads; the latents, which all heads share, are computed on every rank."""
        has_latent = bool(self.config.q_lora_rank)
        plan = plan_column_row_pair(
            ("wq_b.weight" if has_latent else "wq.weight", "wkv_b.weight"),
            ("wo.weight",),
            replicated=("wq_a.weight", "wkv_a.weight") if has_latent else ("wkv_a.weight",),
        )
        rules = (replace(rule, form=ParallelForm.SHARED_LATENTS) if not rule.pattern else rule for rule in plan.modules)
        return replace(plan, modules=tuple(rules))

    def forward(self, x: Tensor, rotation: Rotation, segments: Any = None, cache: LayerCache | None = None) -> Tensor:
        q, latent, k_rope = self.project(x, rotation)
        if cache is not None:
            rotated = apply_rope(k_rope, rotation, interleaved=self.interleaved, kernels=self.kernels)
            (keys,) = cache.append(torch.cat((latent, rotated.squeeze(2)), dim=-1))
            if not cache.is_empty:
                return self.wo(self.attend_latents(q, keys, cache.mask(x.shape[1])).flatten(2))
        if self.attend_shared is not None:
            rotated = apply_rope(k_rope, rotation, interleaved=self.interleaved, kernels=self.kernels)
            latents = torch.cat((latent, rotated.squeeze(2)), dim=-1)
            return self.wo(self.attend_shared(q, latents, self.wkv_b.weight, segments).flatten(2))
        kv = self.wkv_b(latent).unflatten(-1, (-1, self.config.qk_nope_head_dim + self.config.v_head_dim))
        k, v = join_keys(
            kv,
            k_rope,
            rotation,
            values=self.config.v_head_dim,
            interleaved=self.interleaved,
            kernels=self.kernels,
        )
        return self.wo(self.attend(q, k, v, segments).flatten(2))

    def project(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [batch, sequence, heads, channels] with RoPE, latents [batch, sequence, channels] and the keys that
        all heads share [batch, sequence, 1, channels], still without RoPE."""
        config, interleaved, kernels = self.config, self.interleaved, self.kernels
        q = self.wq_b(self.q_norm(self.wq_a(x))) if config.q_lora_rank else self.wq(x)
        q = rope_tail(q.unflatten(-1, (-1, self.qk_head_dim)), rotation, interleaved=interleaved, kernels=kernels)
        latent, k_rope = self.wkv_a(x).split((config.kv_lora_rank, config.qk_rope_head_dim), dim=-1)
        return q, self.kv_norm(latent), k_rope.unsqueeze(2)

    def attend_latents(self, q: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """Attention over [latent | shared key] of all tokens so far, without making keys and values of every head.

        A key is a matrix times its latent, so a query times that matrix meets the latent itself; values likewise.
        """
        config = self.config
        per_head = self.wkv_b.weight.unflatten(0, (-1, config.qk_nope_head_dim + config.v_head_dim))
        of_keys, of_values = per_head.split((config.qk_nope_head_dim, config.v_head_dim), dim=1)
        own, tail = q.split((config.qk_nope_head_dim, config.qk_rope_head_dim), dim=-1)
        queries = torch.cat((torch.einsum("bqhc,hcr->bqhr", own, of_keys), tail), dim=-1)
        keys = keys.unsqueeze(1)
        out = cached_attention(queries, keys, keys[..., : config.kv_lora_rank], mask, scale=self.attend.scale)
        return torch.einsum("bqhr,hvr->bqhv", out, of_values)
