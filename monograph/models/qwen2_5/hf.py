"""Qwen2.5 in Hugging Face's terms (Qwen2ForCausalLM)."""

from collections.abc import Mapping
from typing import Any

from monograph.errors import ConfigError
from monograph.models.config import FeedForwardConfig
from monograph.models.hf_config import check_read, check_whole_heads, read_kv_heads, read_shared, write_shared
from monograph.models.hf_map import (
    ATTENTION,
    FEED_FORWARD,
    NORMS,
    OUTPUT,
    TOP,
    Entry,
    NameRule,
    expand,
    is_never_needed,
)
from monograph.models.hf_reader import HfReader
from monograph.models.hf_rope import read_rope, write_rope
from monograph.models.qwen2_5.config import BiasedAttentionConfig, Qwen2Config

MODEL_TYPES: tuple[str, ...] = ("qwen2",)
"""`model_type` of the config.json of such a model."""
NAMES = {"hidden_dim": "intermediate_size"}
"""Fields of our config -> keys of config.json, besides those that all families share."""
BIASES = tuple(
    NameRule(f"layers.{{layer}}.attention.w{name}.bias", f"model.layers.{{layer}}.self_attn.{name}_proj.bias")
    for name in "qkv"
)


def entries(config: Qwen2Config) -> list[Entry]:
    """Every tensor of ours and its name in their checkpoint."""
    top = TOP if config.tied_embeddings else TOP + OUTPUT
    return [*expand(top), *expand(NORMS + ATTENTION + BIASES + FEED_FORWARD, layers=range(config.n_layers))]


def is_ignored(config: Qwen2Config, name: str) -> bool:
    """Whether a tensor of their checkpoint is known, and known not to be needed."""
    return is_never_needed(config, name)


def from_hf_config(given: Mapping[str, Any]) -> Qwen2Config:
    """Our config of the model that a config.json describes."""
    hf = HfReader(given)
    hf.require("model_type", "qwen2")
    hf.require("use_sliding_window", False)
    hf.ignore("sliding_window", "max_window_layers")  # read by their classes only with use_sliding_window
    dim, n_heads = hf.size("hidden_size"), hf.count("num_attention_heads")
    check_whole_heads(dim, n_heads)
    hf.require("head_dim", dim // n_heads, None)
    config = Qwen2Config(
        **read_shared(hf),
        rope=read_rope(hf),
        attention=BiasedAttentionConfig(n_heads=n_heads, n_kv_heads=read_kv_heads(hf)),
        feed_forward=FeedForwardConfig(hidden_dim=hf.size("intermediate_size")),
    )
    hf.finish()
    check_read(config, NAMES)
    return config


def to_hf_config(config: Qwen2Config) -> dict[str, Any]:
    """The config.json of a model of ours."""
    attention = config.attention
    check_whole_heads(config.dim, attention.n_heads)
    if attention.qk_norm or attention.head_dim not in (0, config.dim // attention.n_heads):
        raise ConfigError(
            f"attention.qk_norm is {attention.qk_norm} and attention.head_dim is {attention.head_dim}",
            why="Qwen2ForCausalLM has no such norms, and divides its width by the heads",
            do="attention.qk_norm false, attention.head_dim 0",
        )
    written = write_shared(config, model_type="qwen2", architecture="Qwen2ForCausalLM") | write_rope(config.rope)
    del written["attention_bias"]  # the class has biases, and no such key
    return written | {
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads,
        "intermediate_size": config.feed_forward.hidden_dim,
        "use_sliding_window": False,
    }
