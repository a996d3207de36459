"""How many parameters a model will have, from its config alone: the list of recipes must not need torch."""

from dataclasses import dataclass

from monograph.models.config import AttentionConfig, DecoderConfig, LatentAttentionConfig, MoeConfig
from monograph.models.model_config import ModelConfig


@dataclass(frozen=True)
class Size:
    """Parameters in all, and those one token uses."""

    total: int
    active: int

    def __str__(self) -> str:
        total, active = format_count(self.total), format_count(self.active)
        return total if total == active else f"{total}, {active} active"


def format_count(count: int) -> str:
    """A parameter count as people say it: 8.03B, 3.4M."""
    return f"{count / 1e9:.2f}B" if count >= 1e8 else f"{count / 1e6:.1f}M"


def count_parameters(model: ModelConfig) -> Size | None:
    """The size of a model put together from the shared parts; None for one that has parts of its own."""
    if not isinstance(model, DecoderConfig):
        return None
    attention, feed_forward = getattr(model, "attention", None), getattr(model, "feed_forward", None)
    count = getattr(attention, "count_parameters", None)
    if count is not None:
        per_block = count(model.dim)
    elif isinstance(attention, AttentionConfig):
        per_block = _count_attention(attention, model.dim)
    elif isinstance(attention, LatentAttentionConfig):
        per_block = _count_latent_attention(attention, model.dim)
    else:
        return None
    per_block += getattr(model, "norms_per_block", 2) * model.dim
    outside = model.vocab_size * model.dim * (1 if model.tied_embeddings else 2) + model.dim
    moe = getattr(model, "moe", None)
    n_dense = model.count_dense_layers()
    dense = n_dense * 3 * model.dim * feed_forward.hidden_dim if feed_forward else 0
    routed = _count_moe(moe, model.dim) if moe and n_dense < model.n_layers else Size(0, 0)
    fixed = outside + model.n_layers * per_block + dense
    n_moe = model.n_layers - n_dense
    return Size(fixed + n_moe * routed.total, fixed + n_moe * routed.active)


def _count_attention(attention: AttentionConfig, dim: int) -> int:
    head_dim = attention.find_head_dim(dim)
    norms = 2 * head_dim if attention.qk_norm else 0
    return 2 * dim * head_dim * (attention.n_heads + attention.n_kv_heads) + norms


def _count_latent_attention(attention: LatentAttentionConfig, dim: int) -> int:
    heads, rank = attention.n_heads, attention.kv_lora_rank
    query_dim = heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim)
    query = dim * query_dim
    if attention.q_lora_rank:
        query = attention.q_lora_rank * (dim + 1 + query_dim)
    latent = dim * (rank + attention.qk_rope_head_dim) + rank
    rebuilt = rank * heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    return query + latent + rebuilt + heads * attention.v_head_dim * dim


def _count_moe(moe: MoeConfig, dim: int) -> Size:
    """What a part with parameters of its own counts, or the usual."""
    count = getattr(moe, "count_parameters", None)
    if count is not None:
        return Size(*count(dim))
    expert, gate = 3 * dim * moe.hidden_dim, dim * moe.n_experts
    shared = moe.n_shared_experts * expert
    return Size(gate + shared + moe.n_experts * expert, gate + shared + moe.router.top_k * expert)
