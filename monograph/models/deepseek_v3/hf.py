"""The DeepSeek family in Hugging Face's terms (DeepseekV3ForCausalLM, DeepseekV2ForCausalLM)."""

from collections.abc import Mapping
from typing import Any

from monograph.errors import ConfigError
from monograph.models.config import FeedForwardConfig, LatentAttentionConfig, MoeConfig, RouterConfig
from monograph.models.deepseek_v3.config import DeepseekV3Config
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
    EXPERTS,
    FEED_FORWARD,
    NORMS,
    OUTPUT,
    TOP,
    Entry,
    Rule,
    expand,
    find_layer,
    is_never_needed,
)


def rule(ours: str, theirs: str) -> Rule:
    """A rule within a block."""
    return Rule(f"layers.{{layer}}.{ours}", f"model.layers.{{layer}}.{theirs}")


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


def from_hf_config(hf: Mapping[str, Any]) -> DeepseekV3Config:
    """Our config of the model that a config.json describes."""
    refuse_unless(hf, "model_type", "deepseek_v2", "deepseek_v3")
    refuse_unless(hf, "moe_layer_freq", 1)
    refuse_unless(hf, "num_key_value_heads", None, need(hf, "num_attention_heads"))
    interleaved = hf.get("rope_interleave") is not False
    return DeepseekV3Config(
        **read_shared(hf),
        rope=read_rope(hf, layout="interleaved" if interleaved else "half", scales_scores=True),
        n_dense_layers=need(hf, "first_k_dense_replace"),
        attention=LatentAttentionConfig(
            n_heads=need(hf, "num_attention_heads"),
            q_lora_rank=hf.get("q_lora_rank") or 0,
            kv_lora_rank=need(hf, "kv_lora_rank"),
            qk_nope_head_dim=need(hf, "qk_nope_head_dim"),
            qk_rope_head_dim=need(hf, "qk_rope_head_dim"),
            v_head_dim=need(hf, "v_head_dim"),
        ),
        feed_forward=FeedForwardConfig(hidden_dim=need(hf, "intermediate_size")),
        moe=MoeConfig(
            n_experts=hf.get("n_routed_experts") or need(hf, "num_local_experts"),
            hidden_dim=need(hf, "moe_intermediate_size"),
            n_shared_experts=need(hf, "n_shared_experts"),
            router=read_v3_router(hf) if hf.get("model_type") == "deepseek_v3" else read_v2_router(hf),
            balance=read_balance(hf, "aux_loss_alpha", scope="sequence" if hf.get("seq_aux", True) else "micro_batch"),
        ),
    )


def read_v3_router(hf: Mapping[str, Any]) -> RouterConfig:
    """Sigmoid scores with a selection bias, groups ranked by their two best."""
    refuse_unless(hf, "scoring_func", "sigmoid")
    refuse_unless(hf, "topk_method", "noaux_tc")
    return RouterConfig(
        top_k=need(hf, "num_experts_per_tok"),
        score="sigmoid",
        n_groups=hf.get("n_group") or 1,
        top_groups=hf.get("topk_group") or 1,
        norm=bool(hf.get("norm_topk_prob", True)),
        scale=float(need(hf, "routed_scaling_factor")),
        expert_bias=True,
    )


def read_v2_router(hf: Mapping[str, Any]) -> RouterConfig:
    """Softmax scores used as they are, groups (if any) ranked by their best."""
    refuse_unless(hf, "scoring_func", "softmax")
    refuse_unless(hf, "topk_method", "greedy", "group_limited_greedy")
    refuse_unless(hf, "norm_topk_prob", False, None)
    router = RouterConfig(
        top_k=need(hf, "num_experts_per_tok"), norm=False, scale=float(need(hf, "routed_scaling_factor"))
    )
    if hf.get("topk_method") == "group_limited_greedy":
        router.n_groups, router.top_groups = need(hf, "n_group"), need(hf, "topk_group")
        router.group_score = "max"
    return router


def to_hf_config(config: DeepseekV3Config) -> dict[str, Any]:
    """The config.json of a model of ours: V3's, or V2's when the scores are a softmax."""
    is_v3 = config.moe.router.score == "sigmoid"
    check_router(config.moe, is_v3=is_v3)
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
        "routed_scaling_factor": router.scale,
        "scoring_func": router.score,
        "aux_loss_alpha": moe.balance.coefficient,
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
