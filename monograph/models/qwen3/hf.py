"""Qwen3 in Hugging Face's terms (Qwen3ForCausalLM, Qwen3MoeForCausalLM)."""

from collections.abc import Mapping
from typing import Any

from monograph.config.leaves import find_leaves
from monograph.errors import ConfigError
from monograph.models.config import AttentionConfig, FeedForwardConfig, MoeConfig, RouterConfig
from monograph.models.hf_config import check_read, read_balance, read_experts, read_head_dim, read_shared, write_shared
from monograph.models.hf_map import (
    ATTENTION,
    EXPERTS,
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
from monograph.models.qwen3.config import Qwen3Config

MODEL_TYPES: tuple[str, ...] = ("qwen3", "qwen3_moe")
"""`model_type` of the config.json of such a model."""
NAMES = {"top_k": "num_experts_per_tok", "n_experts": "num_experts", "hidden_dim": "moe_intermediate_size"}
"""Fields of our config -> keys of config.json, besides those that all families share."""
HEAD_NORMS = tuple(
    NameRule(f"layers.{{layer}}.attention.{name}_norm.weight", f"model.layers.{{layer}}.self_attn.{name}_norm.weight")
    for name in "qk"
)


def entries(config: Qwen3Config) -> list[Entry]:
    """Every tensor of ours and its names in their checkpoint."""
    top = TOP if config.tied_embeddings else TOP + OUTPUT
    block = NORMS + ATTENTION + HEAD_NORMS + (EXPERTS if config.moe.n_experts else FEED_FORWARD)
    return [*expand(top), *expand(block, layers=range(config.n_layers), n_experts=config.moe.n_experts)]


def is_ignored(config: Qwen3Config, name: str) -> bool:
    """Whether a tensor of their checkpoint is known, and known not to be needed."""
    return is_never_needed(config, name)


def from_hf_config(given: Mapping[str, Any]) -> Qwen3Config:
    """Our config of the model that a config.json describes."""
    hf = HfReader(given)
    hf.require("model_type", "qwen3", "qwen3_moe")
    hf.require("use_sliding_window", False)
    hf.ignore("sliding_window", "max_window_layers")  # read by their classes only with use_sliding_window
    is_moe = hf.get("model_type") == "qwen3_moe"
    config = Qwen3Config(
        **read_shared(hf),
        rope=read_rope(hf),
        attention=AttentionConfig(
            n_heads=hf.count("num_attention_heads"),
            n_kv_heads=hf.count("num_key_value_heads"),
            head_dim=read_head_dim(hf) if is_moe and "head_dim" not in given else hf.size("head_dim"),
            qk_norm=True,
        ),
        feed_forward=FeedForwardConfig(hidden_dim=hf.size("intermediate_size")),
    )
    if is_moe:
        config.moe = read_moe(hf)
    hf.finish()
    check_read(config, NAMES)
    return config


def read_moe(hf: HfReader) -> MoeConfig:
    """The experts of every block."""
    hf.require("decoder_sparse_step", 1)
    hf.require("mlp_only_layers", [], None)
    return MoeConfig(
        n_experts=read_experts(hf, "num_experts", "num_local_experts"),
        hidden_dim=hf.size("moe_intermediate_size"),
        router=RouterConfig(top_k=hf.count("num_experts_per_tok"), norm=hf.boolean("norm_topk_prob")),
        balance=read_balance(hf, scope="global", times_top_k=True),
    )


def to_hf_config(config: Qwen3Config) -> dict[str, Any]:
    """The config.json of a model of ours."""
    if not config.attention.qk_norm:
        raise ConfigError(
            "attention.qk_norm is off", why="their model always has these norms", do="attention.qk_norm true"
        )
    is_moe = bool(config.moe.n_experts)
    model_type, architecture = ("qwen3_moe", "Qwen3MoeForCausalLM") if is_moe else ("qwen3", "Qwen3ForCausalLM")
    return (
        write_shared(config, model_type=model_type, architecture=architecture)
        | write_rope(config.rope)
        | {
            "num_attention_heads": config.attention.n_heads,
            "num_key_value_heads": config.attention.n_kv_heads,
            "head_dim": config.attention.find_head_dim(config.dim),
            "intermediate_size": config.feed_forward.hidden_dim,
            "use_sliding_window": False,
            "sliding_window": None,
        }
        | (write_moe(config.moe) if is_moe else {})
    )


def write_moe(moe: MoeConfig) -> dict[str, Any]:
    """The keys that describe the experts; what Qwen3MoeForCausalLM cannot compute is refused."""
    router = moe.router
    plain = RouterConfig(
        top_k=router.top_k, norm=router.norm, bias_update_rate=router.bias_update_rate, group_score=router.group_score
    )
    if moe.n_shared_experts:
        raise ConfigError(f"moe.n_shared_experts is {moe.n_shared_experts}", why="Qwen3MoeForCausalLM has none")
    for leaf, expected in zip(find_leaves(router), find_leaves(plain), strict=True):
        if leaf != expected:
            raise ConfigError(
                f"moe.router.{leaf.path} is {leaf.value}",
                why=f"Qwen3MoeForCausalLM computes with {expected.value} only",
                do="export a model trained like that",
            )
    return {
        "num_experts": moe.n_experts,
        "num_experts_per_tok": router.top_k,
        "moe_intermediate_size": moe.hidden_dim,
        "norm_topk_prob": router.norm,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
