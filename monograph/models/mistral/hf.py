"""Mistral in Hugging Face's terms (MistralForCausalLM)."""

from collections.abc import Mapping
from typing import Any

from monograph.errors import ConfigError
from monograph.models.config import AttentionConfig, FeedForwardConfig
from monograph.models.hf_config import check_read, read_head_dim, read_kv_heads, read_shared, write_shared
from monograph.models.hf_map import ATTENTION, FEED_FORWARD, NORMS, OUTPUT, TOP, Entry, expand, is_never_needed
from monograph.models.hf_reader import HfReader
from monograph.models.hf_rope import read_rope, write_rope
from monograph.models.mistral.config import MistralConfig

MODEL_TYPES: tuple[str, ...] = ("mistral",)
"""`model_type` of the config.json of such a model."""
NAMES = {"hidden_dim": "intermediate_size", "window": "sliding_window"}
"""Fields of our config -> keys of config.json, besides those that all families share."""
UNSTATED = {"sliding_window": 4096, "num_key_value_heads": 8}
"""Values that MistralConfig takes for missing keys; null means no window, and as many heads as for queries."""


def entries(config: MistralConfig) -> list[Entry]:
    """Every tensor of ours and its name in their checkpoint."""
    top = TOP if config.tied_embeddings else TOP + OUTPUT
    return [*expand(top), *expand(NORMS + ATTENTION + FEED_FORWARD, layers=range(config.n_layers))]


def is_ignored(config: MistralConfig, name: str) -> bool:
    """Whether a tensor of their checkpoint is known, and known not to be needed."""
    return is_never_needed(config, name)


def from_hf_config(given: Mapping[str, Any]) -> MistralConfig:
    """Our config of the model that a config.json describes."""
    hf = HfReader({**UNSTATED, **given})
    hf.require("model_type", "mistral")
    dim, n_heads, head_dim = hf.size("hidden_size"), hf.count("num_attention_heads"), read_head_dim(hf)
    config = MistralConfig(
        **read_shared(hf),
        window=hf.tokens("sliding_window") if hf.has("sliding_window") else 0,
        rope=read_rope(hf),
        attention=AttentionConfig(
            n_heads=n_heads, n_kv_heads=read_kv_heads(hf), head_dim=0 if head_dim * n_heads == dim else head_dim
        ),
        feed_forward=FeedForwardConfig(hidden_dim=hf.size("intermediate_size")),
    )
    hf.finish()
    check_read(config, NAMES)
    return config


def to_hf_config(config: MistralConfig) -> dict[str, Any]:
    """The config.json of a model of ours."""
    attention = config.attention
    if attention.qk_norm:
        raise ConfigError(
            "attention.qk_norm is on", why="MistralForCausalLM has no such norms", do="attention.qk_norm false"
        )
    written = write_shared(config, model_type="mistral", architecture="MistralForCausalLM") | write_rope(config.rope)
    del written["attention_bias"]  # the class has no biases, and no such key
    return written | {
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads,
        "head_dim": attention.find_head_dim(config.dim),
        "intermediate_size": config.feed_forward.hidden_dim,
        "sliding_window": config.window or None,
    }
