"""Qwen3 in Hugging Face's terms (Qwen3ForCausalLM, Qwen3MoeForCausalLM)."""

from collections.abc import Mapping
from typing import Any

from monograph.errors import ConfigError
from monograph.models.config import AttentionConfig, FeedForwardConfig, MoeConfig, RouterConfig
from monograph.models.hf_config import (
    need,
    read_balance,
    read_rope,
    read_shared,
    refuse_unless,
    write_rope,
    write_shared,
)
from monograph.models.hf_map import (
    ATTENTION,
    EXPERTS,
    FEED_FORWARD,
    NORMS,
    OUTPUT,
    TOP,
    Entry,
    Rule,
    expand,
    is_never_needed,
)
from monograph.models.qwen3.config import Qwen3Config

HEAD_NORMS = tuple(
    Rule(f"layers.{{layer}}.attention.{name}_norm.weight", f"model.layers.{{layer}}.self_attn.{name}_norm.weight")
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


def from_hf_config(hf: Mapping[str, Any]) -> Qwen3Config:
    """Our config of the model that a config.json describes."""
    refuse_unless(hf, "model_type", "qwen3", "qwen3_moe")
    refuse_unless(hf, "use_sliding_window", False, None)
    is_moe = hf.get("model_type") == "qwen3_moe"
    derived_head_dim = need(hf, "hidden_size") // need(hf, "num_attention_heads")
    config = Qwen3Config(
        **read_shared(hf),
        rope=read_rope(hf),
        attention=AttentionConfig(
            n_heads=need(hf, "num_attention_heads"),
            n_kv_heads=need(hf, "num_key_value_heads"),
            head_dim=(hf.get("head_dim") or derived_head_dim) if is_moe else need(hf, "head_dim"),
            qk_norm=True,
        ),
        feed_forward=FeedForwardConfig(hidden_dim=need(hf, "intermediate_size")),
    )
    if is_moe:
        refuse_unless(hf, "decoder_sparse_step", 1)
        refuse_unless(hf, "mlp_only_layers", [], None)
        config.moe = MoeConfig(
            n_experts=hf.get("num_experts") or need(hf, "num_local_experts"),
            hidden_dim=need(hf, "moe_intermediate_size"),
            router=RouterConfig(top_k=need(hf, "num_experts_per_tok"), norm=bool(need(hf, "norm_topk_prob"))),
            balance=read_balance(hf, "router_aux_loss_coef", scope="global", times_top_k=True),
        )
    return config


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
    if router != plain or moe.n_shared_experts:
        raise ConfigError(
            "moe has shared experts, or a router with groups, a scale, sigmoid scores or expert biases",
            why="Qwen3MoeForCausalLM knows none of these",
            do="export a model trained without them",
        )
    return {
        "num_experts": moe.n_experts,
        "num_experts_per_tok": router.top_k,
        "moe_intermediate_size": moe.hidden_dim,
        "norm_topk_prob": router.norm,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "router_aux_loss_coef": moe.balance.coefficient,
    }
