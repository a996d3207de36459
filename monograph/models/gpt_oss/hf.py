"""gpt_oss in Hugging Face's terms (GptOssForCausalLM); published checkpoints hold experts in MXFP4."""

from collections.abc import Mapping
from typing import Any

from monograph.config.leaves import find_leaves
from monograph.errors import ConfigError
from monograph.models.gpt_oss.config import (
    BiasedMoeConfig,
    BiasedRouterConfig,
    ClampedExpertsConfig,
    GptOssConfig,
    LayerKind,
    SinkAttentionConfig,
)
from monograph.models.hf_config import check_read, read_balance, read_experts, read_kv_heads, read_shared, write_shared
from monograph.models.hf_map import NORMS, OUTPUT, TOP, Entry, NameRule, expand, is_never_needed
from monograph.models.hf_quantization import check_mxfp4
from monograph.models.hf_reader import HfReader
from monograph.models.hf_rope import read_rope, write_rope

MODEL_TYPES: tuple[str, ...] = ("gpt_oss",)
"""`model_type` of the config.json of such a model."""
NAMES = {
    "window": "sliding_window",
    "layer_kinds": "layer_types",
    "n_experts": "num_local_experts",
    "top_k": "num_experts_per_tok",
    "hidden_dim": "intermediate_size",
    "alpha": "swiglu_alpha",
    "limit": "swiglu_limit",
}
"""Fields of our config -> keys of config.json, besides those that all families share."""
KINDS: dict[str, LayerKind] = {"sliding_attention": "window", "full_attention": "full"}


def rule(ours: str, theirs: str) -> NameRule:
    """A rule within a block."""
    return NameRule(f"layers.{{layer}}.{ours}", f"model.layers.{{layer}}.{theirs}")


ATTENTION = (
    *(rule(f"attention.heads.w{name}.weight", f"self_attn.{name}_proj.weight") for name in "qkvo"),
    *(rule(f"attention.heads.w{name}.bias", f"self_attn.{name}_proj.bias") for name in "qkv"),
    rule("attention.bias", "self_attn.o_proj.bias"),
    rule("attention.heads.sinks", "self_attn.sinks"),
)
EXPERTS = (
    rule("moe.router.gate.weight", "mlp.router.weight"),
    rule("moe.router.gate.bias", "mlp.router.bias"),
    rule("moe.experts.w13", "mlp.experts.gate_up_proj"),
    rule("moe.experts.bias.weight", "mlp.experts.gate_up_proj_bias"),
    rule("moe.experts.w2", "mlp.experts.down_proj"),
    rule("moe.bias.weight", "mlp.experts.down_proj_bias"),
)


def entries(config: GptOssConfig) -> list[Entry]:
    """Every tensor of ours and its name in their checkpoint."""
    top = TOP if config.tied_embeddings else TOP + OUTPUT
    return [*expand(top), *expand(NORMS + ATTENTION + EXPERTS, layers=range(config.n_layers))]


def is_ignored(config: GptOssConfig, name: str) -> bool:
    """Whether a tensor of their checkpoint is known, and known not to be needed."""
    return is_never_needed(config, name)


def from_hf_config(given: Mapping[str, Any]) -> GptOssConfig:
    """Our config of the model that a config.json describes."""
    hf = HfReader(given)
    hf.require("model_type", "gpt_oss")
    hf.require("attention_bias", True)
    shared = read_shared(hf, own=("attention_bias", "layer_types", "quantization_config"))
    check_mxfp4(hf.section("quantization_config"))
    if not any(hf.has(key) for key in ("rope_scaling", "rope_parameters")):
        raise ConfigError(
            "config.json has no 'rope_scaling'",
            why="GptOssForCausalLM then stretches its context with settings of its own",
            do='write them there: {"rope_type": "yarn", ...}, or {"rope_type": "default"} for none',
        )
    top_k = read_experts(hf, "num_experts_per_tok", "experts_per_token")
    config = GptOssConfig(
        **shared,
        rope=read_rope(hf),
        layer_kinds=read_layer_kinds(hf, shared["n_layers"]),
        window=hf.tokens("sliding_window"),
        attention=SinkAttentionConfig(
            n_heads=hf.count("num_attention_heads"), n_kv_heads=read_kv_heads(hf), head_dim=hf.size("head_dim")
        ),
        moe=BiasedMoeConfig(
            n_experts=read_experts(hf, "num_local_experts", "num_experts"),
            hidden_dim=hf.size("intermediate_size"),
            router=BiasedRouterConfig(top_k=top_k),
            balance=read_balance(hf, scope="micro_batch", times_top_k=True),
            experts=ClampedExpertsConfig(
                alpha=hf.number("swiglu_alpha", default=1.702), limit=hf.number("swiglu_limit", default=7.0)
            ),
        ),
    )
    hf.require("initial_context_length", config.rope.original_max_seq_len, None)
    hf.finish()
    check_read(config, NAMES)
    return config


def read_layer_kinds(hf: HfReader, n_layers: int) -> tuple[LayerKind, ...]:
    """What each layer's queries see; empty for the family's usual turns, windowed layers first."""
    given = hf.get("layer_types")
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(each, str) and each in KINDS for each in given):
        raise hf.refuse("layer_types", f"expected a list of {' and '.join(KINDS)}")
    kinds = tuple(KINDS[each] for each in given)
    if len(kinds) != n_layers:
        raise hf.refuse("layer_types", f"'num_hidden_layers' is {n_layers}")
    usual = tuple("full" if layer % 2 else "window" for layer in range(n_layers))
    return () if kinds == usual else kinds


def to_hf_config(config: GptOssConfig) -> dict[str, Any]:
    """The config.json of a model of ours."""
    attention, moe = config.attention, config.moe
    check_router(moe)
    rope = write_rope(config.rope)
    if rope["rope_scaling"] is None:
        rope["rope_scaling"] = {"rope_type": "default"}
    kinds = ["sliding_attention" if config.is_windowed(layer) else "full_attention" for layer in range(config.n_layers)]
    shared = write_shared(config, model_type="gpt_oss", architecture="GptOssForCausalLM")
    return (
        shared
        | rope
        | {
            "attention_bias": True,
            "num_attention_heads": attention.n_heads,
            "num_key_value_heads": attention.n_kv_heads,
            "head_dim": attention.find_head_dim(config.dim),
            "layer_types": kinds,
            "sliding_window": config.window,
            "intermediate_size": moe.hidden_dim,
            "num_local_experts": moe.n_experts,
            "num_experts_per_tok": moe.router.top_k,
            "swiglu_alpha": float(moe.experts.alpha),
            "swiglu_limit": float(moe.experts.limit),
        }
    )


def check_router(moe: BiasedMoeConfig) -> None:
    """Refuse a choice of experts that their class does not make."""
    router = moe.router
    plain = BiasedRouterConfig(
        top_k=router.top_k, bias_update_rate=router.bias_update_rate, group_score=router.group_score
    )
    for leaf, expected in zip(find_leaves(router), find_leaves(plain), strict=True):
        if leaf != expected:
            raise ConfigError(
                f"moe.router.{leaf.path} is {leaf.value}",
                why=f"GptOssForCausalLM computes with {expected.value} only",
                do="export a model trained like that",
            )
