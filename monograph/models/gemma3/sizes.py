"""The published Gemma 3 models (text) and a small one for trying things out."""

from monograph.models.config import RopeConfig
from monograph.models.gemma2.config import GegluConfig
from monograph.models.gemma3.config import Gemma3AttentionConfig, Gemma3Config


def gemma3_debugmodel() -> Gemma3Config:
    """A few million parameters with every feature of the large ones, for tests and laptops."""
    return Gemma3Config(
        vocab_size=512,
        dim=256,
        n_layers=6,
        norm_eps=1e-6,
        tied_embeddings=True,
        window=32,
        rope=RopeConfig(max_seq_len=2048, theta=1000000.0, scaling="linear", factor=8.0),
        attention=Gemma3AttentionConfig(n_heads=4, n_kv_heads=1, head_dim=48, score_dim=32.0),
        feed_forward=GegluConfig(hidden_dim=768),
    )


def gemma3_1b() -> Gemma3Config:
    """Gemma 3 1B: 1.00 billion parameters, tied."""
    return Gemma3Config(
        vocab_size=262144,
        dim=1152,
        n_layers=26,
        norm_eps=1e-6,
        tied_embeddings=True,
        window=512,
        rope=RopeConfig(max_seq_len=32768, theta=1000000.0),
        attention=Gemma3AttentionConfig(n_heads=4, n_kv_heads=1, head_dim=256),
        feed_forward=GegluConfig(hidden_dim=6912),
    )
