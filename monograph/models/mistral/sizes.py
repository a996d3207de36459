"""The published Mistral models and a small one for trying things out."""

from monograph.models.config import AttentionConfig, FeedForwardConfig, RopeConfig
from monograph.models.mistral.config import MistralConfig


def mistral_debugmodel() -> MistralConfig:
    """A few million parameters with windows, for tests and laptops."""
    return MistralConfig(
        vocab_size=512,
        dim=256,
        n_layers=6,
        window=32,
        rope=RopeConfig(max_seq_len=2048),
        attention=AttentionConfig(n_heads=8, n_kv_heads=2),
        feed_forward=FeedForwardConfig(hidden_dim=768),
    )


def mistral_7b() -> MistralConfig:
    """Mistral-7B-v0.1: 7.24 billion parameters, windows of 4096 keys."""
    return MistralConfig(
        vocab_size=32000,
        dim=4096,
        n_layers=32,
        window=4096,
        rope=RopeConfig(max_seq_len=32768),
        attention=AttentionConfig(n_heads=32, n_kv_heads=8),
        feed_forward=FeedForwardConfig(hidden_dim=14336),
    )


def mistral_nemo_12b() -> MistralConfig:
    """Mistral-Nemo-Base-2407: 12.25 billion parameters, no windows, heads of 128 channels at a width of 5120."""
    return MistralConfig(
        vocab_size=131072,
        dim=5120,
        n_layers=40,
        rope=RopeConfig(max_seq_len=131072, theta=1000000.0),
        attention=AttentionConfig(n_heads=32, n_kv_heads=8, head_dim=128),
        feed_forward=FeedForwardConfig(hidden_dim=14336),
    )
