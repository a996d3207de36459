"""The published Llama 4 models (their text parts) and a small one for trying things out."""

from monograph.models.config import FeedForwardConfig, RopeConfig
from monograph.models.llama4.config import Llama4AttentionConfig, Llama4Config, Llama4MoeConfig, Llama4RouterConfig
from monograph.models.load_balance_config import LoadBalanceConfig


def experts(n_experts: int, hidden_dim: int) -> Llama4MoeConfig:
    """What the experts of all sizes share: one for each token, a shared one, balance over the global batch."""
    return Llama4MoeConfig(
        n_experts=n_experts,
        hidden_dim=hidden_dim,
        n_shared_experts=1,
        router=Llama4RouterConfig(top_k=1, score="sigmoid", norm=False),
        balance=LoadBalanceConfig(coefficient=0.001, scope="global"),
    )


def make_published(n_experts: int, rope: RopeConfig, *, moe_interval: int, qk_norm: bool) -> Llama4Config:
    """What both published sizes share."""
    return Llama4Config(
        vocab_size=202048,
        dim=5120,
        n_layers=48,
        norm_eps=1e-5,
        moe_interval=moe_interval,
        rope=rope,
        attention=Llama4AttentionConfig(n_heads=40, n_kv_heads=8, head_dim=128, qk_norm=qk_norm),
        feed_forward=FeedForwardConfig(hidden_dim=16384),
        moe=experts(n_experts, 8192),
    )


def llama4_debugmodel() -> Llama4Config:
    """A few million parameters with every feature of the large ones, for tests and laptops."""
    return Llama4Config(
        vocab_size=512,
        dim=256,
        n_layers=6,
        norm_eps=1e-5,
        chunk=64,
        moe_interval=2,
        rope=RopeConfig(
            max_seq_len=2048,
            theta=500000.0,
            layout="interleaved",
            scaling="llama3",
            factor=2.0,
            low_freq_factor=1.0,
            high_freq_factor=1.0,
            original_max_seq_len=1024,
        ),
        attention=Llama4AttentionConfig(n_heads=8, n_kv_heads=2, head_dim=32, floor_scale=64),
        feed_forward=FeedForwardConfig(hidden_dim=768),
        moe=experts(8, 384),
    )


def llama4_scout() -> Llama4Config:
    """Llama 4 Scout 17B-16E, text part: 107.77 billion parameters, 16 experts in every layer."""
    rope = RopeConfig(
        max_seq_len=10485760,
        theta=500000.0,
        layout="interleaved",
        scaling="llama3",
        factor=16.0,
        low_freq_factor=1.0,
        high_freq_factor=1.0,
        original_max_seq_len=8192,
    )
    return make_published(16, rope, moe_interval=1, qk_norm=True)


def llama4_maverick() -> Llama4Config:
    """Llama 4 Maverick 17B-128E, text part: 400.71 billion parameters, 128 experts in every second layer."""
    rope = RopeConfig(max_seq_len=1048576, theta=500000.0, layout="interleaved")
    return make_published(128, rope, moe_interval=2, qk_norm=False)
