"""Starcoder 2 in Hugging Face's terms (Starcoder2ForCausalLM with use_bias false): names, and config.json both ways."""

from collections.abc import Mapping
from typing import Any

from examples.own_model.config import Starcoder2Config
from monograph.errors import ConfigError
from monograph.parts import AttentionConfig, Entry, NameRule, RopeConfig, expand

MODEL_TYPES: tuple[str, ...] = ("starcoder2",)
"""`model_type` of the config.json of such a model."""
TOP = (
    NameRule("embedding.weight", "model.embed_tokens.weight"),
    NameRule("head.norm.weight", "model.norm.weight"),
    NameRule("head.norm.bias", "model.norm.bias"),
    NameRule("head.output.weight", "lm_head.weight"),
)
LAYER = (
    *(
        NameRule(f"layers.{{layer}}.norm_1.{kind}", f"model.layers.{{layer}}.input_layernorm.{kind}")
        for kind in ("weight", "bias")
    ),
    *(
        NameRule(f"layers.{{layer}}.attention.w{name}.weight", f"model.layers.{{layer}}.self_attn.{name}_proj.weight")
        for name in "qkvo"
    ),
    *(
        NameRule(f"layers.{{layer}}.norm_2.{kind}", f"model.layers.{{layer}}.post_attention_layernorm.{kind}")
        for kind in ("weight", "bias")
    ),
    *(
        NameRule(f"layers.{{layer}}.feed_forward.{name}.weight", f"model.layers.{{layer}}.mlp.{name}.weight")
        for name in ("c_fc", "c_proj")
    ),
)
FIXED = {
    "use_bias": False,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": False,
    "sliding_window": None,
    "attention_dropout": 0.0,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
}
"""What this model cannot do otherwise: another value is refused."""


def entries(config: Starcoder2Config) -> list[Entry]:
    """Every tensor of ours and its name in their checkpoint."""
    return [*expand(TOP), *expand(LAYER, layers=range(config.n_layers))]


def is_ignored(config: Starcoder2Config, name: str) -> bool:
    """Whether a tensor of their checkpoint is known, and known not to be needed."""
    return name.endswith("rotary_emb.inv_freq")


def from_hf_config(hf: Mapping[str, Any]) -> Starcoder2Config:
    """Our config of the model that a config.json describes."""
    for key, value in FIXED.items():
        if hf.get(key, value) != value:
            raise ConfigError(f"'{key}' is {hf[key]!r} in config.json", why=f"this model has {value!r} only")
    rope = hf.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default" or hf.get("rope_scaling"):
        raise ConfigError("config.json scales rotary positions", why="this model does not")
    return Starcoder2Config(
        vocab_size=hf["vocab_size"],
        dim=hf["hidden_size"],
        n_layers=hf["num_hidden_layers"],
        hidden_dim=hf["intermediate_size"],
        norm_eps=hf["norm_epsilon"],
        attention=AttentionConfig(n_heads=hf["num_attention_heads"], n_kv_heads=hf["num_key_value_heads"]),
        rope=RopeConfig(
            max_seq_len=hf["max_position_embeddings"], theta=rope.get("rope_theta", hf.get("rope_theta", 10000.0))
        ),
    )


def to_hf_config(config: Starcoder2Config) -> dict[str, Any]:
    """The config.json of a model of ours."""
    return FIXED | {
        "architectures": ["Starcoder2ForCausalLM"],
        "model_type": "starcoder2",
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.n_layers,
        "intermediate_size": config.hidden_dim,
        "norm_epsilon": config.norm_eps,
        "num_attention_heads": config.attention.n_heads,
        "num_key_value_heads": config.attention.n_kv_heads,
        "max_position_embeddings": config.rope.max_seq_len,
        "rope_theta": config.rope.theta,
    }
