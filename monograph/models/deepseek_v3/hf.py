"""The DeepSeek family in Hugging Face's terms (DeepseekV3ForCausalLM, DeepseekV2ForCausalLM)."""

from collections.abc import Mapping
from typing import Any

from monograph.errors import ConfigError
from monograph.models.config import (
    FeedForwardConfig,
    LatentAttentionConfig,
    MoeConfig,
    RouterConfig,
)
from monograph.models.deepseek_v3.config import DeepseekV3Config
from monograph.models.hf_config import (
    check_read,
    check_whole_heads,
    make_balance,
    read_experts,
    read_shared,
    write_shared,
)
from monograph.models.hf_map import (
    EXPERTS,
    FEED_FORWARD,
    NORMS,
    OUTPUT,
    TOP,
    Entry,
    NameRule,
    expand,
    find_layer,
    is_never_needed,
)
from monograph.models.hf_reader import HfReader
from monograph.models.hf_rope import read_rope, write_rope

LATENT_NORM_EPS = 1e-6
"""What both of their classes add in the norms of the latents; config.json has no key for it."""
MODEL_TYPES: tuple[str, ...] = ("deepseek_v2", "deepseek_v3")
"""`model_type` of the config.json of such a model."""
NAMES = {
    "n_dense_layers": "first_k_dense_replace",
    "n_experts": "n_routed_experts",
    "top_k": "num_experts_per_tok",
    "n_groups": "n_group",
    "top_groups": "topk_group",
    "scale": "routed_scaling_factor",
    "qk_rope_head_dim": "qk_rope_head_dim",
}
"""Fields of our config -> keys of config.json, besides those that all families share."""


def rule(ours: str, theirs: str) -> NameRule:
    """A rule within a block."""
    return NameRule(f"layers.{{layer}}.{ours}", f"model.layers.{{layer}}.{theirs}")


LATENT = (
    rule("attention.wkv_a.weight", "self_attn.kv_a_proj_with_mqa.weight"),
    rule("attention.kv_norm.weight", "self_attn.kv_a_layernorm.weight"),
    rule("attention.wkv_b.weight", "self_attn.kv_b_proj.weight"),
    rule("attention.wo.weight", "self_attn.o_proj.weight"),
)
DIRECT_QUERY = (rule("attention.wq.weight", "self_attn.q_proj.weight"),)
LATENT_QUERY = (
    rule("attention.wq_a.weight", "self_attn.q_a_proj.weight"),
    rule("attention.q_norm.weight", "self_attn.q_a_layernorm.weight"),
    rule("attention.wq_b.weight", "self_attn.q_b_proj.weight"),
)
SHARED_EXPERTS = (
    rule("moe.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight"),
    rule("moe.shared_experts.w2.weight", "mlp.shared_experts.down_proj.weight"),
    rule("moe.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight"),
)
BIAS = (rule("moe.router.expert_bias", "mlp.gate.e_score_correction_bias"),)


def entries(config: DeepseekV3Config) -> list[Entry]:
    """Every tensor of ours and its names in their checkpoint."""
    top = TOP if config.tied_embeddings else TOP + OUTPUT
    block = NORMS + LATENT + (LATENT_QUERY if config.attention.q_lora_rank else DIRECT_QUERY)
    experts = EXPERTS + SHARED_EXPERTS + (BIAS if config.moe.router.expert_bias else ())
    return [
        *expand(top),
        *expand(block, layers=range(config.n_layers)),
        *expand(FEED_FORWARD, layers=range(config.n_dense_layers)),
        *expand(experts, layers=range(config.n_dense_layers, config.n_layers), n_experts=config.moe.n_experts),
    ]


def is_ignored(config: DeepseekV3Config, name: str) -> bool:
    """Tensors not needed: those of any family, and the blocks after the last, which predict several tokens ahead."""
    return is_never_needed(config, name) or find_layer(name) >= config.n_layers


def from_hf_config(given: Mapping[str, Any]) -> DeepseekV3Config:
    """Our config of the model that a config.json describes."""
    hf = HfReader(given)
    hf.require("model_type", "deepseek_v2", "deepseek_v3")
    hf.require("moe_layer_freq", 1)
    hf.require("sliding_window", None)
    hf.ignore("num_nextn_predict_layers", "num_mtp_layers")  # see is_ignored
    is_v3 = hf.get("model_type") == "deepseek_v3"
    interleaved = not is_v3 or hf.boolean("rope_interleave", default=True)
    config = DeepseekV3Config(
        **read_shared(hf),
        rope=read_rope(hf, layout="interleaved" if interleaved else "half", scales_scores=True),
        n_dense_layers=hf.count("first_k_dense_replace", least=0),
        attention=read_attention(hf),
        feed_forward=FeedForwardConfig(hidden_dim=hf.size("intermediate_size")),
        moe=MoeConfig(
            n_experts=read_experts(hf, "n_routed_experts", "num_local_experts", "num_experts"),
            hidden_dim=hf.size("moe_intermediate_size"),
            n_shared_experts=hf.count("n_shared_experts"),
            router=read_v3_router(hf) if is_v3 else read_v2_router(hf),
            balance=make_balance(
                hf, "aux_loss_alpha", scope="sequence" if hf.boolean("seq_aux", default=True) else "micro_batch"
            ),
        ),
    )
    hf.finish()
    check_read(config, NAMES)
    check_sizes(config, is_v3=is_v3)
    return config


def read_attention(hf: HfReader) -> LatentAttentionConfig:
    """Latent attention; keys that their classes derive from others must say what is derived."""
    n_heads = hf.count("num_attention_heads")
    hf.require_derived("num_key_value_heads", n_heads, "'num_attention_heads'")
    nope, rope = (hf.size(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim"))
    hf.require_derived("head_dim", rope, "'qk_rope_head_dim'")
    hf.require_derived("qk_head_dim", nope + rope, "'qk_nope_head_dim' and 'qk_rope_head_dim'")
    is_direct = "q_lora_rank" in hf.values and not hf.has("q_lora_rank")
    return LatentAttentionConfig(
        n_heads=n_heads,
        q_lora_rank=0 if is_direct else hf.size("q_lora_rank"),
        kv_lora_rank=hf.size("kv_lora_rank"),
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=hf.size("v_head_dim"),
        latent_norm_eps=LATENT_NORM_EPS,
    )


def read_v3_router(hf: HfReader) -> RouterConfig:
    """Sigmoid scores with a selection bias, groups ranked by their two best.

    Whoever trains the model on keeps its biases: they belong to the load of the text it was pre-trained on, and a step
    of the usual rate sends tokens to other experts, however small the learning rate is.
    """
    hf.require("scoring_func", "sigmoid")
    hf.require("topk_method", "noaux_tc")
    return RouterConfig(
        top_k=hf.count("num_experts_per_tok"),
        score="sigmoid",
        n_groups=hf.count("n_group"),
        top_groups=hf.count("topk_group"),
        norm=hf.boolean("norm_topk_prob", default=True),
        scale=hf.number("routed_scaling_factor"),
        expert_bias=True,
        bias_update_rate=0.0,
    )


def read_v2_router(hf: HfReader) -> RouterConfig:
    """Softmax scores used as they are, groups (if any) ranked by their best."""
    hf.require("scoring_func", "softmax")
    hf.require("topk_method", "greedy", "group_limited_greedy")
    hf.require("norm_topk_prob", False, None)
    hf.ignore("n_group", "topk_group")  # read below, where they count
    router = RouterConfig(top_k=hf.count("num_experts_per_tok"), norm=False, scale=hf.number("routed_scaling_factor"))
    if hf.get("topk_method") == "group_limited_greedy":
        router.n_groups = hf.count("n_group")
        router.top_groups = hf.count("topk_group")
        router.group_score = "max" if router.n_groups > 1 else router.group_score
    return router


def check_sizes(config: DeepseekV3Config, *, is_v3: bool) -> None:
    """Refuse sizes that their classes refuse, in either direction."""
    if not is_v3:
        check_whole_heads(config.dim, config.attention.n_heads)
    elif config.find_moe() and config.moe.n_experts // config.moe.router.n_groups < 2:
        raise ConfigError(
            f"'n_routed_experts' is {config.moe.n_experts} and 'n_group' is {config.moe.router.n_groups}",
            why="DeepseekV3ForCausalLM ranks a group by its two best experts, even when there is one group",
        )


def to_hf_config(config: DeepseekV3Config) -> dict[str, Any]:
    """The config.json of a model of ours: V3's, or V2's when the scores are a softmax."""
    is_v3 = config.moe.router.score == "sigmoid"
    check_router(config.moe, is_v3=is_v3)
    check_sizes(config, is_v3=is_v3)
    if config.attention.latent_norm_eps != LATENT_NORM_EPS:
        raise ConfigError(
            f"attention.latent_norm_eps is {config.attention.latent_norm_eps}",
            why=f"their classes always use {LATENT_NORM_EPS}, and config.json has no key for it",
            do=f"export a model trained with attention.latent_norm_eps {LATENT_NORM_EPS}",
        )
    name = "DeepseekV3" if is_v3 else "DeepseekV2"
    model_type = "deepseek_v3" if is_v3 else "deepseek_v2"
    attention = config.attention
    return (
        write_shared(config, model_type=model_type, architecture=f"{name}ForCausalLM")
        | write_rope(config.rope, layout=None if is_v3 else "interleaved", scales_scores=True)
        | {
            "num_attention_heads": attention.n_heads,
            "num_key_value_heads": attention.n_heads,
            "q_lora_rank": attention.q_lora_rank or None,
            "kv_lora_rank": attention.kv_lora_rank,
            "qk_nope_head_dim": attention.qk_nope_head_dim,
            "qk_rope_head_dim": attention.qk_rope_head_dim,
            "v_head_dim": attention.v_head_dim,
            "intermediate_size": config.feed_forward.hidden_dim,
            "first_k_dense_replace": config.n_dense_layers,
            "moe_layer_freq": 1,
        }
        | write_moe(config.moe, is_v3=is_v3)
        | ({"rope_interleave": config.rope.layout == "interleaved", "num_nextn_predict_layers": 0} if is_v3 else {})
    )


def write_moe(moe: MoeConfig, *, is_v3: bool) -> dict[str, Any]:
    """The keys that describe the experts."""
    router = moe.router
    return {
        "n_routed_experts": moe.n_experts,
        "num_experts_per_tok": router.top_k,
        "moe_intermediate_size": moe.hidden_dim,
        "n_shared_experts": moe.n_shared_experts,
        "n_group": router.n_groups,
        "topk_group": router.top_groups,
        "norm_topk_prob": router.norm,
        "routed_scaling_factor": float(router.scale),
        "scoring_func": router.score,
        "aux_loss_alpha": float(moe.balance.coefficient),
        "seq_aux": moe.balance.scope == "sequence",
        "topk_method": "noaux_tc" if is_v3 else "greedy" if router.n_groups == 1 else "group_limited_greedy",
    }


def check_router(moe: MoeConfig, *, is_v3: bool) -> None:
    """Refuse a choice of experts that neither of their models makes."""
    router, limited = moe.router, moe.router.n_groups > 1
    problems = {
        "moe.n_shared_experts is 0": not moe.n_shared_experts,
        "router.force_balance is on": router.force_balance,
        f"router.expert_bias is {router.expert_bias} with {router.score} scores": router.expert_bias != is_v3,
        f"router.group_score is {router.group_score} with {router.score} scores": (
            limited and router.group_score != ("top2_sum" if is_v3 else "max")
        ),
        "router.norm is on with softmax scores": router.norm and not is_v3,
    }
    for problem, is_there in problems.items():
        if is_there:
            raise ConfigError(problem, why="neither DeepseekV3ForCausalLM nor DeepseekV2ForCausalLM computes like that")
