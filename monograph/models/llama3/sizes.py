"""The published Llama 3 models (3.2 for 1B and 3B, 3.1 for the others) and a small one for trying things out."""

from monograph.models.config import AttentionConfig, FeedForwardConfig, RopeConfig
from monograph.models.llama3.config import Llama3Config


def published_rope(factor: float) -> RopeConfig:
    """The rotary positions all Llama 3.1 and 3.2 models share, apart from the factor."""
    return RopeConfig(
        max_seq_len=131072,
        theta=500000.0,
        scaling="llama3",
        factor=factor,
        original_max_seq_len=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )


def llama3_debugmodel() -> Llama3Config:
    """A few million parameters, for tests and laptops."""
    return Llama3Config(
        vocab_size=512,
        dim=256,
        n_layers=6,
        rope=RopeConfig(max_seq_len=2048, theta=500000.0),
        attention=AttentionConfig(n_heads=8, n_kv_heads=4),
        feed_forward=FeedForwardConfig(hidden_dim=768),
    )


def llama3_1b() -> Llama3Config:
    """Llama 3.2 1B: 1.24 billion parameters, tied."""
    return Llama3Config(
        vocab_size=128256,
        dim=2048,
        n_layers=16,
        tied_embeddings=True,
        rope=published_rope(32.0),
        attention=AttentionConfig(n_heads=32, n_kv_heads=8),
        feed_forward=FeedForwardConfig(hidden_dim=8192),
    )


def llama3_3b() -> Llama3Config:
    """Llama 3.2 3B: 3.21 billion parameters, tied."""
    return Llama3Config(
        vocab_size=128256,
        dim=3072,
        n_layers=28,
        tied_embeddings=True,
        rope=published_rope(32.0),
        attention=AttentionConfig(n_heads=24, n_kv_heads=8),
        feed_forward=FeedForwardConfig(hidden_dim=8192),
    )


def llama3_8b() -> Llama3Config:
    """Llama 3.1 8B: 8.03 billion parameters."""
    return Llama3Config(
        vocab_size=128256,
        dim=4096,
        n_layers=32,
        rope=published_rope(8.0),
        attention=AttentionConfig(n_heads=32, n_kv_heads=8),
        feed_forward=FeedForwardConfig(hidden_dim=14336),
    )


def llama3_70b() -> Llama3Config:
    """Llama 3.1 70B: 70.55 billion parameters."""
    return Llama3Config(
        vocab_size=128256,
        dim=8192,
        n_layers=80,
        rope=published_rope(8.0),
        attention=AttentionConfig(n_heads=64, n_kv_heads=8),
        feed_forward=FeedForwardConfig(hidden_dim=28672),
    )


def llama3_405b() -> Llama3Config:
    """Llama 3.1 405B: 405.85 billion parameters."""
    return Llama3Config(
        vocab_size=128256,
        dim=16384,
        n_layers=126,
        rope=published_rope(8.0),
        attention=AttentionConfig(n_heads=128, n_kv_heads=8),
        feed_forward=FeedForwardConfig(hidden_dim=53248),
    )
