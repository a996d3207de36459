"""The published Qwen3 models, dense and mixture of experts, and small ones for trying things out."""

from monograph.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    MoeConfig,
    RopeConfig,
    RouterConfig,
)
from monograph.models.load_balance_config import LoadBalanceConfig
from monograph.models.qwen3.config import Qwen3Config


def dense(dim: int, n_layers: int, n_heads: int, n_kv_heads: int, hidden_dim: int, *, tied: bool) -> Qwen3Config:
    """What the published dense sizes share."""
    return Qwen3Config(
        vocab_size=151936,
        dim=dim,
        n_layers=n_layers,
        norm_eps=1e-6,
        tied_embeddings=tied,
        rope=RopeConfig(max_seq_len=40960, theta=1000000.0),
        attention=AttentionConfig(n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=128, qk_norm=True),
        feed_forward=FeedForwardConfig(hidden_dim=hidden_dim),
    )


def experts(n_experts: int, hidden_dim: int, top_k: int) -> MoeConfig:
    """What the published MoE sizes share: balance over the global batch, in Hugging Face's formula."""
    return MoeConfig(
        n_experts=n_experts,
        hidden_dim=hidden_dim,
        router=RouterConfig(top_k=top_k),
        balance=LoadBalanceConfig(coefficient=0.001, scope="global", times_top_k=True, mean_of_layers=True),
    )


def qwen3_debugmodel() -> Qwen3Config:
    """A few million parameters, dense, for tests and laptops."""
    return Qwen3Config(
        vocab_size=512,
        dim=256,
        n_layers=6,
        norm_eps=1e-6,
        tied_embeddings=True,
        rope=RopeConfig(max_seq_len=2048, theta=1000000.0),
        attention=AttentionConfig(n_heads=8, n_kv_heads=4, head_dim=32, qk_norm=True),
        feed_forward=FeedForwardConfig(hidden_dim=768),
    )


def qwen3_0_6b() -> Qwen3Config:
    """Qwen3-0.6B: 0.60 billion parameters, tied."""
    return dense(1024, 28, 16, 8, 3072, tied=True)


def qwen3_1_7b() -> Qwen3Config:
    """Qwen3-1.7B: 1.72 billion parameters, tied."""
    return dense(2048, 28, 16, 8, 6144, tied=True)


def qwen3_4b() -> Qwen3Config:
    """Qwen3-4B: 4.02 billion parameters, tied."""
    return dense(2560, 36, 32, 8, 9728, tied=True)


def qwen3_8b() -> Qwen3Config:
    """Qwen3-8B: 8.19 billion parameters."""
    return dense(4096, 36, 32, 8, 12288, tied=False)


def qwen3_14b() -> Qwen3Config:
    """Qwen3-14B: 14.77 billion parameters."""
    return dense(5120, 40, 40, 8, 17408, tied=False)


def qwen3_32b() -> Qwen3Config:
    """Qwen3-32B: 32.76 billion parameters."""
    return dense(5120, 64, 64, 8, 25600, tied=False)


def qwen3_debugmodel_moe() -> Qwen3Config:
    """A few million parameters with 8 experts, for tests and laptops."""
    model = qwen3_debugmodel()
    model.moe = experts(8, 256, top_k=2)
    return model


def qwen3_30b_a3b() -> Qwen3Config:
    """Qwen3-30B-A3B: 30.53 billion parameters, 128 experts of which 8 serve a token."""
    model = dense(2048, 48, 32, 4, 6144, tied=False)
    model.moe = experts(128, 768, top_k=8)
    return model


def qwen3_235b_a22b() -> Qwen3Config:
    """Qwen3-235B-A22B: 235.09 billion parameters, 128 experts of which 8 serve a token."""
    model = dense(4096, 94, 64, 4, 12288, tied=False)
    model.moe = experts(128, 1536, top_k=8)
    return model
