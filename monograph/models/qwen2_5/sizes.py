"""The published Qwen2.5 models and a small one for trying things out."""

from monograph.models.config import FeedForwardConfig, RopeConfig
from monograph.models.qwen2_5.config import BiasedAttentionConfig, Qwen2Config


def make_published(
    dim: int, n_layers: int, heads: tuple[int, int], hidden_dim: int, *, vocab_size: int = 152064, tied: bool = False
) -> Qwen2Config:
    """What all published sizes share; `heads` are those of queries, and of keys and values."""
    return Qwen2Config(
        vocab_size=vocab_size,
        dim=dim,
        n_layers=n_layers,
        norm_eps=1e-6,
        tied_embeddings=tied,
        rope=RopeConfig(max_seq_len=32768, theta=1000000.0),
        attention=BiasedAttentionConfig(n_heads=heads[0], n_kv_heads=heads[1]),
        feed_forward=FeedForwardConfig(hidden_dim=hidden_dim),
    )


def qwen2_5_debugmodel() -> Qwen2Config:
    """A few million parameters, for tests and laptops."""
    return Qwen2Config(
        vocab_size=512,
        dim=256,
        n_layers=6,
        norm_eps=1e-6,
        tied_embeddings=True,
        rope=RopeConfig(max_seq_len=2048, theta=1000000.0),
        attention=BiasedAttentionConfig(n_heads=8, n_kv_heads=2),
        feed_forward=FeedForwardConfig(hidden_dim=768),
    )


def qwen2_5_0_5b() -> Qwen2Config:
    """Qwen2.5-0.5B: 0.49 billion parameters, tied."""
    return make_published(896, 24, (14, 2), 4864, vocab_size=151936, tied=True)


def qwen2_5_1_5b() -> Qwen2Config:
    """Qwen2.5-1.5B: 1.54 billion parameters, tied."""
    return make_published(1536, 28, (12, 2), 8960, vocab_size=151936, tied=True)


def qwen2_5_3b() -> Qwen2Config:
    """Qwen2.5-3B: 3.09 billion parameters, tied."""
    return make_published(2048, 36, (16, 2), 11008, vocab_size=151936, tied=True)


def qwen2_5_7b() -> Qwen2Config:
    """Qwen2.5-7B: 7.62 billion parameters."""
    return make_published(3584, 28, (28, 4), 18944)


def qwen2_5_14b() -> Qwen2Config:
    """Qwen2.5-14B: 14.77 billion parameters."""
    return make_published(5120, 48, (40, 8), 13824)


def qwen2_5_32b() -> Qwen2Config:
    """Qwen2.5-32B: 32.76 billion parameters."""
    return make_published(5120, 64, (40, 8), 27648)


def qwen2_5_72b() -> Qwen2Config:
    """Qwen2.5-72B: 72.71 billion parameters."""
    return make_published(8192, 80, (64, 8), 29568)
