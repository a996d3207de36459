"""Gemma 2 in Hugging Face's terms (Gemma2ForCausalLM)."""

from collections.abc import Mapping
from typing import Any

from monograph.errors import ConfigError
from monograph.models.gemma2.config import GegluConfig, Gemma2Config, GemmaAttentionConfig, LayerKind
from monograph.models.hf_config import check_read, check_whole_heads, read_kv_heads, read_shared, write_shared
from monograph.models.hf_map import ATTENTION, FEED_FORWARD, OUTPUT, TOP, Entry, NameRule, expand, is_never_needed
from monograph.models.hf_reader import HfReader
from monograph.models.hf_rope import read_rope, write_rope

MODEL_TYPES: tuple[str, ...] = ("gemma2",)
"""`model_type` of the config.json of such a model."""
NAMES = {
    "window": "sliding_window",
    "layer_kinds": "layer_types",
    "hidden_dim": "intermediate_size",
    "score_dim": "query_pre_attn_scalar",
    "score_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping",
}
"""Fields of our config -> keys of config.json, besides those that all families share."""
UNSTATED: dict[str, Any] = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
"""Values that Gemma2Config takes for missing keys."""
KINDS: dict[str, LayerKind] = {"sliding_attention": "window", "full_attention": "full"}
OWN = ("hidden_act", "layer_types")
NORMS = tuple(
    NameRule(f"layers.{{layer}}.{ours}.weight", f"model.layers.{{layer}}.{theirs}_layernorm.weight")
    for ours, theirs in (
        ("attention_norm", "input"),
        ("attention_out_norm", "post_attention"),
        ("ffn_norm", "pre_feedforward"),
        ("ffn_out_norm", "post_feedforward"),
    )
)


def entries(config: Gemma2Config) -> list[Entry]:
    """Every tensor of ours and its name in their checkpoint."""
    top = TOP if config.tied_embeddings else TOP + OUTPUT
    return [*expand(top), *expand(NORMS + ATTENTION + FEED_FORWARD, layers=range(config.n_layers))]


def is_ignored(config: Gemma2Config, name: str) -> bool:
    """Whether a tensor of their checkpoint is known, and known not to be needed."""
    return is_never_needed(config, name)


def from_hf_config(given: Mapping[str, Any]) -> Gemma2Config:
    """Our config of the model that a config.json describes."""
    hf = HfReader({**UNSTATED, **given})
    hf.require("model_type", "gemma2")
    shared = read_gemma(hf)
    attention = GemmaAttentionConfig(**read_attention(hf), score_cap=read_cap(hf, "attn_logit_softcapping"))
    config = Gemma2Config(**shared, rope=read_rope(hf), attention=attention)
    config.layer_kinds = read_layer_kinds(hf, config)
    hf.finish()
    check_read(config, NAMES)
    return config


def read_gemma(hf: HfReader) -> dict[str, Any]:
    """What Gemma 2 and 3 share, except rotary positions, layers and attention."""
    hf.require("hidden_activation", "gelu_pytorch_tanh")
    hf.require("use_bidirectional_attention", False, None)
    hf.ignore("hidden_act", "cache_implementation")  # their classes read hidden_activation alone
    check_whole_heads(hf.size("hidden_size"), hf.count("num_attention_heads"))
    return {
        **read_shared(hf, own=OWN),
        "window": hf.tokens("sliding_window"),
        "logit_cap": read_cap(hf, "final_logit_softcapping"),
        "feed_forward": GegluConfig(hidden_dim=hf.size("intermediate_size")),
    }


def read_attention(hf: HfReader) -> dict[str, Any]:
    """Heads and the scale of scores; theirs divides by the root of the scalar, ours has 0 where that is the usual."""
    head_dim = hf.size("head_dim")
    scalar = hf.size("query_pre_attn_scalar")
    return {
        "n_heads": hf.count("num_attention_heads"),
        "n_kv_heads": read_kv_heads(hf),
        "head_dim": head_dim,
        "score_dim": 0.0 if scalar == head_dim else float(scalar),
    }


def read_cap(hf: HfReader, key: str) -> float:
    """A soft cap; null for none."""
    if not hf.has(key):
        return 0.0
    value = hf.number(key)
    if value <= 0:
        raise hf.refuse(key, "a cap is a positive number, or null for none")
    return value


def read_layer_kinds(hf: HfReader, config: Gemma2Config) -> tuple[LayerKind, ...]:
    """What each layer's queries see; empty for the family's usual order."""
    given = hf.get("layer_types")
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(each, str) and each in KINDS for each in given):
        raise hf.refuse("layer_types", f"expected a list of {' and '.join(KINDS)}")
    kinds = tuple(KINDS[each] for each in given)
    if len(kinds) != config.n_layers:
        raise hf.refuse("layer_types", f"'num_hidden_layers' is {config.n_layers}")
    return () if kinds == tuple(config.find_usual_kinds()) else kinds


def to_hf_config(config: Gemma2Config) -> dict[str, Any]:
    """The config.json of a model of ours."""
    if config.attention.qk_norm:
        raise ConfigError(
            "attention.qk_norm is on", why="Gemma2ForCausalLM has no such norms", do="attention.qk_norm false"
        )
    written = write_gemma(config, model_type="gemma2", architecture="Gemma2ForCausalLM")
    return written | write_rope(config.rope) | {"attn_logit_softcapping": float(config.attention.score_cap) or None}


def write_gemma(config: Gemma2Config, *, model_type: str, architecture: str) -> dict[str, Any]:
    """The keys that say what `read_gemma` and `read_attention` read, and the kinds of layers."""
    attention = config.attention
    head_dim = attention.find_head_dim(config.dim)
    check_whole_heads(config.dim, attention.n_heads)
    scalar = attention.score_dim or head_dim
    if scalar != int(scalar):
        raise ConfigError(
            f"attention.score_dim is {scalar}",
            why=f"query_pre_attn_scalar of {architecture} is a whole number",
            do="export a model with a whole number",
        )
    theirs = {ours: name for name, ours in KINDS.items()}
    written = write_shared(config, model_type=model_type, architecture=architecture)
    del written["hidden_act"]  # the class reads another key
    return written | {
        "hidden_activation": "gelu_pytorch_tanh",
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads,
        "head_dim": head_dim,
        "intermediate_size": config.feed_forward.hidden_dim,
        "query_pre_attn_scalar": int(scalar),
        "sliding_window": config.window,
        "layer_types": [theirs[kind] for kind in config.find_layer_kinds()],
        "final_logit_softcapping": float(config.logit_cap) or None,
    }
