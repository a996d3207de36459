"""Llama 3 in Hugging Face's terms (LlamaForCausalLM)."""

from collections.abc import Mapping
from typing import Any

from monograph.errors import ConfigError
from monograph.models.config import AttentionConfig, FeedForwardConfig
from monograph.models.hf_config import check_read, check_whole_heads, read_kv_heads, read_shared, write_shared
from monograph.models.hf_map import ATTENTION, FEED_FORWARD, NORMS, OUTPUT, TOP, Entry, expand, is_never_needed
from monograph.models.hf_reader import HfReader
from monograph.models.hf_rope import read_rope, write_rope
from monograph.models.llama3.config import Llama3Config

MODEL_TYPES: tuple[str, ...] = ("llama",)
"""`model_type` of the config.json of such a model."""
NAMES = {"hidden_dim": "intermediate_size"}
"""Fields of our config -> keys of config.json, besides those that all families share."""


def entries(config: Llama3Config) -> list[Entry]:
    """Every tensor of ours and its name in their checkpoint."""
    top = TOP if config.tied_embeddings else TOP + OUTPUT
    return [*expand(top), *expand(NORMS + ATTENTION + FEED_FORWARD, layers=range(config.n_layers))]


def is_ignored(config: Llama3Config, name: str) -> bool:
    """Whether a tensor of their checkpoint is known, and known not to be needed."""
    return is_never_needed(config, name)


def from_hf_config(given: Mapping[str, Any]) -> Llama3Config:
    """Our config of the model that a config.json describes."""
    hf = HfReader(given)
    hf.require("model_type", "llama")
    hf.require("sliding_window", None)
    dim, n_heads = hf.size("hidden_size"), hf.count("num_attention_heads")
    check_whole_heads(dim, n_heads)
    head_dim = hf.size("head_dim") if hf.has("head_dim") else 0
    config = Llama3Config(
        **read_shared(hf),
        rope=read_rope(hf),
        attention=AttentionConfig(
            n_heads=n_heads, n_kv_heads=read_kv_heads(hf), head_dim=0 if head_dim * n_heads == dim else head_dim
        ),
        feed_forward=FeedForwardConfig(hidden_dim=hf.size("intermediate_size")),
    )
    hf.finish()
    check_read(config, NAMES)
    return config


def to_hf_config(config: Llama3Config) -> dict[str, Any]:
    """The config.json of a model of ours."""
    if config.attention.qk_norm:
        raise ConfigError(
            "attention.qk_norm is on", why="LlamaForCausalLM has no such norms", do="attention.qk_norm false"
        )
    check_whole_heads(config.dim, config.attention.n_heads)
    return (
        write_shared(config, model_type="llama", architecture="LlamaForCausalLM")
        | write_rope(config.rope)
        | {
            "num_attention_heads": config.attention.n_heads,
            "num_key_value_heads": config.attention.n_kv_heads,
            "head_dim": config.attention.find_head_dim(config.dim),
            "intermediate_size": config.feed_forward.hidden_dim,
            "mlp_bias": False,
        }
    )
