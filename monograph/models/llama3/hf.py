"""Llama 3 in Hugging Face's terms (LlamaForCausalLM)."""

from collections.abc import Mapping
from typing import Any

from monograph.errors import ConfigError
from monograph.models.config import AttentionConfig, FeedForwardConfig
from monograph.models.hf_config import need, read_rope, read_shared, refuse_unless, write_rope, write_shared
from monograph.models.hf_map import ATTENTION, FEED_FORWARD, NORMS, OUTPUT, TOP, Entry, expand, is_never_needed
from monograph.models.llama3.config import Llama3Config


def entries(config: Llama3Config) -> list[Entry]:
    """Every tensor of ours and its name in their checkpoint."""
    top = TOP if config.tied_embeddings else TOP + OUTPUT
    return [*expand(top), *expand(NORMS + ATTENTION + FEED_FORWARD, layers=range(config.n_layers))]


def is_ignored(config: Llama3Config, name: str) -> bool:
    """Whether a tensor of their checkpoint is known, and known not to be needed."""
    return is_never_needed(config, name)


def from_hf_config(hf: Mapping[str, Any]) -> Llama3Config:
    """Our config of the model that a config.json describes."""
    refuse_unless(hf, "model_type", "llama")
    dim, n_heads = need(hf, "hidden_size"), need(hf, "num_attention_heads")
    head_dim = hf.get("head_dim") or 0
    return Llama3Config(
        **read_shared(hf),
        rope=read_rope(hf),
        attention=AttentionConfig(
            n_heads=n_heads,
            n_kv_heads=hf.get("num_key_value_heads") or n_heads,
            head_dim=0 if head_dim * n_heads == dim else head_dim,
        ),
        feed_forward=FeedForwardConfig(hidden_dim=need(hf, "intermediate_size")),
    )


def to_hf_config(config: Llama3Config) -> dict[str, Any]:
    """The config.json of a model of ours."""
    if config.attention.qk_norm:
        raise ConfigError(
            "attention.qk_norm is on", why="LlamaForCausalLM has no such norms", do="attention.qk_norm false"
        )
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
