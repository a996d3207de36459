"""Multi-head latent attention: keys and values come from one small latent, and extra channels carry RoPE."""

from torch import Tensor, nn

from monograph.config.configurable import Configurable
from monograph.kernels.heads import join_keys, rope_tail
from monograph.kernels.rope import Rotation
from monograph.models.attention import AttentionCore
from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.config import LatentAttentionConfig, ResidualSpec, RopeConfig
from monograph.models.linear import Linear
from monograph.models.norm import RMSNorm
from monograph.models.parallel_plan import ParallelPlan, plan_column_row_pair
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
        self.attend = AttentionCore(
            kind, scale=self.qk_head_dim**-0.5 * compute_score_scale(rope), kernel=config.kernel
        )
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
        self.wo = Linear(config.n_heads * config.v_head_dim, dim, init_std=residual.out_std)

    @property
    def score_width(self) -> int:
        """Channels that one query meets at one position."""
        return self.config.n_heads * (self.qk_head_dim + self.config.v_head_dim)

    def plan_parallel(self) -> ParallelPlan:
        """Every rank computes some of the heads; the latents, which all heads share, are computed on every rank."""
        has_latent = bool(self.config.q_lora_rank)
        return plan_column_row_pair(
            ("wq_b.weight" if has_latent else "wq.weight", "wkv_b.weight"),
            ("wo.weight",),
            replicated=("wq_a.weight", "wkv_a.weight") if has_latent else ("wkv_a.weight",),
        )

    def forward(self, x: Tensor, rotation: Rotation, segments: Tensor | None = None) -> Tensor:
        q, k, v = self.project(x, rotation)
        return self.wo(self.attend(q, k, v, segments).flatten(2))

    def project(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, sequence, heads, channels], positions applied."""
        config, interleaved, kernels = self.config, self.interleaved, self.kernels
        q = self.wq_b(self.q_norm(self.wq_a(x))) if config.q_lora_rank else self.wq(x)
        q = rope_tail(q.unflatten(-1, (-1, self.qk_head_dim)), rotation, interleaved=interleaved, kernels=kernels)

        latent, k_rope = self.wkv_a(x).split((config.kv_lora_rank, config.qk_rope_head_dim), dim=-1)
        kv = self.wkv_b(self.kv_norm(latent)).unflatten(-1, (-1, config.qk_nope_head_dim + config.v_head_dim))
        k, v = join_keys(
            kv, k_rope.unsqueeze(2), rotation, values=config.v_head_dim, interleaved=interleaved, kernels=kernels
        )
        return q, k, v
