"""The published DeepSeek models (V2-Lite, V2 and V3) and a small one for trying things out."""

from monograph.models.config import (
    FeedForwardConfig,
    LatentAttentionConfig,
    MoeConfig,
    RopeConfig,
    RouterConfig,
)
from monograph.models.deepseek_v3.config import DeepseekV3Config
from monograph.models.load_balance_config import LoadBalanceConfig


def published_rope(mscale: float) -> RopeConfig:
    """The rotary positions all published sizes share, apart from yarn's strength."""
    return RopeConfig(
        max_seq_len=163840,
        theta=10000.0,
        layout="interleaved",
        scaling="yarn",
        factor=40.0,
        original_max_seq_len=4096,
        mscale=mscale,
        mscale_all_dim=mscale,
    )


def deepseek_v3_debugmodel() -> DeepseekV3Config:
    """A few million parameters with every feature of the large ones, for tests and laptops."""
    return DeepseekV3Config(
        vocab_size=512,
        dim=256,
        n_layers=6,
        norm_eps=1e-6,
        n_dense_layers=1,
        rope=RopeConfig(
            max_seq_len=2048,
            layout="interleaved",
            scaling="yarn",
            factor=2.0,
            original_max_seq_len=1024,
            mscale=1.0,
            mscale_all_dim=1.0,
        ),
        attention=LatentAttentionConfig(
            n_heads=4, q_lora_rank=96, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=64
        ),
        feed_forward=FeedForwardConfig(hidden_dim=768),
        moe=MoeConfig(
            n_experts=8,
            hidden_dim=128,
            n_shared_experts=2,
            router=RouterConfig(
                top_k=3, score="sigmoid", n_groups=4, top_groups=2, norm=True, scale=1.5, expert_bias=True
            ),
            balance=LoadBalanceConfig(coefficient=0.0001),
        ),
    )


def deepseek_v3_16b() -> DeepseekV3Config:
    """DeepSeek-V2-Lite: 15.71 billion parameters, no query latent, softmax scores."""
    return DeepseekV3Config(
        vocab_size=102400,
        dim=2048,
        n_layers=27,
        norm_eps=1e-6,
        n_dense_layers=1,
        rope=published_rope(0.707),
        attention=LatentAttentionConfig(
            n_heads=16, q_lora_rank=0, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
        ),
        feed_forward=FeedForwardConfig(hidden_dim=10944),
        moe=MoeConfig(
            n_experts=64,
            hidden_dim=1408,
            n_shared_experts=2,
            router=RouterConfig(top_k=6, norm=False, scale=1.0),
            balance=LoadBalanceConfig(coefficient=0.001),
        ),
    )


def deepseek_v3_236b() -> DeepseekV3Config:
    """DeepSeek-V2: 235.74 billion parameters, a token's experts lie in 3 of 8 groups."""
    return DeepseekV3Config(
        vocab_size=102400,
        dim=5120,
        n_layers=60,
        norm_eps=1e-6,
        n_dense_layers=1,
        rope=published_rope(0.707),
        attention=LatentAttentionConfig(
            n_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
        ),
        feed_forward=FeedForwardConfig(hidden_dim=12288),
        moe=MoeConfig(
            n_experts=160,
            hidden_dim=1536,
            n_shared_experts=2,
            router=RouterConfig(top_k=6, n_groups=8, top_groups=3, group_score="max", norm=False, scale=16.0),
            balance=LoadBalanceConfig(coefficient=0.003, group_coefficient=0.05, group_traffic_coefficient=0.02),
        ),
    )


def deepseek_v3_671b() -> DeepseekV3Config:
    """DeepSeek-V3: 671.03 billion parameters (without the multi-token prediction head)."""
    return DeepseekV3Config(
        vocab_size=129280,
        dim=7168,
        n_layers=61,
        norm_eps=1e-6,
        n_dense_layers=3,
        rope=published_rope(1.0),
        attention=LatentAttentionConfig(
            n_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
        ),
        feed_forward=FeedForwardConfig(hidden_dim=18432),
        moe=MoeConfig(
            n_experts=256,
            hidden_dim=2048,
            n_shared_experts=1,
            router=RouterConfig(
                top_k=8, score="sigmoid", n_groups=8, top_groups=4, norm=True, scale=2.5, expert_bias=True
            ),
            balance=LoadBalanceConfig(coefficient=0.0001),
        ),
    )
