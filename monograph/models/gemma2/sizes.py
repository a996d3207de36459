"""The published Gemma 2 models and a small one for trying things out."""

from monograph.models.config import RopeConfig
from monograph.models.gemma2.config import GegluConfig, Gemma2Config, GemmaAttentionConfig


def make_published(
    dim: int, n_layers: int, heads: tuple[int, int], head_dim: int, hidden_dim: int, *, score_dim: float = 0.0
) -> Gemma2Config:
    """What all published sizes share; `heads` are those of queries, and of keys and values."""
    return Gemma2Config(
        vocab_size=256000,
        dim=dim,
        n_layers=n_layers,
        norm_eps=1e-6,
        tied_embeddings=True,
        window=4096,
        logit_cap=30.0,
        rope=RopeConfig(max_seq_len=8192),
        attention=GemmaAttentionConfig(
            n_heads=heads[0], n_kv_heads=heads[1], head_dim=head_dim, score_dim=score_dim, score_cap=50.0
        ),
        feed_forward=GegluConfig(hidden_dim=hidden_dim),
    )


def gemma2_debugmodel() -> Gemma2Config:
    """A few million parameters with every feature of the large ones, for tests and laptops."""
    return Gemma2Config(
        vocab_size=512,
        dim=256,
        n_layers=6,
        norm_eps=1e-6,
        tied_embeddings=True,
        window=32,
        logit_cap=30.0,
        rope=RopeConfig(max_seq_len=2048),
        attention=GemmaAttentionConfig(n_heads=8, n_kv_heads=4, head_dim=48, score_dim=32.0, score_cap=50.0),
        feed_forward=GegluConfig(hidden_dim=768),
    )


def gemma2_2b() -> Gemma2Config:
    """Gemma 2 2B: 2.61 billion parameters, tied."""
    return make_published(2304, 26, (8, 4), 256, 9216)


def gemma2_9b() -> Gemma2Config:
    """Gemma 2 9B: 9.24 billion parameters, tied."""
    return make_published(3584, 42, (16, 8), 256, 14336)


def gemma2_27b() -> Gemma2Config:
    """Gemma 2 27B: 27.23 billion parameters, tied."""
    return make_published(4608, 46, (32, 16), 128, 36864, score_dim=144.0)
