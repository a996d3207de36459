"""Random Hugging Face configs: a small valid one of some family, then a few keys changed, removed or added.

A seed decides everything. Every field of transformers' config class can be drawn, those we have never heard of too.
"""

import dataclasses
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformers

FAMILIES = {
    "llama": "Llama",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe",
    "deepseek_v2": "DeepseekV2",
    "deepseek_v3": "DeepseekV3",
    "mistral": "Mistral",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3Text",
}
"""model_type -> the stem of transformers' class names."""
DEEPSEEK = ("deepseek_v2", "deepseek_v3")
ROPE_KEYS = ("rope_parameters", "rope_scaling")
EXTRA_KEYS = tuple(
    """
    attention_chunk_size attn_implementation aux_loss_alpha compression_config ep_size experts_implementation head_dim
    is_causal is_decoder layer_types mlp_bias moe_layer_freq n_group num_experts num_local_experts num_mtp_layers
    num_nextn_predict_layers num_kv_shared_layers original_max_position_embeddings output_attentions
    partial_rotary_factor per_layer_config pruned_heads qk_head_dim quantization_config rope_interleave rope_theta
    router_aux_loss_coef rotary_dim scoring_func seq_aux sliding_window text_config tie_encoder_decoder topk_group
    topk_method torch_dtype use_bidirectional_attention use_sliding_window max_window_layers unheard_of
    """.split()  # noqa: SIM905 - a list of words
)
"""Keys that config.json files have besides the fields of transformers' classes, or that its code looks for."""
ROPE_OPTIONS = tuple(
    """
    rope_theta rope_type type factor original_max_position_embeddings low_freq_factor high_freq_factor beta_fast
    beta_slow mscale mscale_all_dim attention_factor truncate partial_rotary_factor short_factor long_factor
    mrope_section unheard_of
    """.split()  # noqa: SIM905 - a list of words
)
WORDS: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "gelu", "relu", "swish", "gelu_pytorch_tanh"),
    "hidden_activation": ("silu", "gelu", "relu", "gelu_pytorch_tanh"),
    "layer_types": (["full_attention"], ["full_attention"] * 2, ["sliding_attention"] * 2, ["chunked_attention"]),
    "rope_type": ("default", "llama3", "yarn", "linear", "dynamic", "longrope", "proportional", "su"),
    "topk_method": ("greedy", "group_limited_greedy", "noaux_tc", "other"),
    "scoring_func": ("softmax", "sigmoid"),
    "per_layer_config": ({"0": {"sliding_window": 4}}, {"0": {"rms_norm_eps": 0.1}}),
    "mlp_only_layers": ([], [0], [1], None),
    "short_factor": ([1.0, 2.0],),
    "long_factor": ([1.0, 2.0],),
    "torch_dtype": ("float32", "bfloat16"),
    "dtype": ("float32", "bfloat16"),
    "attn_implementation": ("eager", "sdpa"),
    "experts_implementation": ("eager", "grouped_mm"),
    "quantization_config": (
        {},
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "mxfp4"},
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "fp8"},
        {"quant_method": "fp8", "weight_block_size": [128]},
    ),
}
"""What keys that hold words or structures are drawn from."""
ODD: tuple[Any, ...] = (
    *(None, True, False, "", "text", "8", [], [1], {}, {"a": 1}),
    *(0, 1, 2, 3, 5, 8, -1, -4, 10**9, 10**30, 10**400),
    *(0.0, 0.5, 1.0, 4.0, -1.0, 1e-3, 1e3, 1e-12, 1e-300, 1e300, math.inf, -math.inf, math.nan),
)
"""Values that some key does not expect."""
REMOVED = object()


@dataclass(frozen=True)
class Drawn:
    """What a seed stands for."""

    hf: dict[str, Any]
    changed: tuple[str, ...]
    """Keys that may make the config invalid; those in the rotary section by their last name."""


def draw(seed: int) -> Drawn:
    """The config that a seed stands for; seeds that differ by a multiple of their number are of one family."""
    pick = random.Random(seed)
    model_type = list(FAMILIES)[seed % len(FAMILIES)]
    hf = draw_valid(pick, model_type)
    changed = []
    for _ in range(pick.choice((0, 0, 1, 1, 1, 2, 3))):
        section = next((hf[key] for key in ROPE_KEYS if isinstance(hf.get(key), dict)), None)
        if section is not None and pick.random() < 0.35:
            target, key = section, pick.choice(ROPE_OPTIONS)
        else:
            target, key = hf, pick.choice(find_keys(model_type))
        value = draw_value(pick, key, target.get(key))
        changed.append(key)
        if value is REMOVED:
            target.pop(key, None)
        else:
            target[key] = value
    return Drawn(hf, tuple(changed))


def find_keys(model_type: str) -> list[str]:
    """Every field of transformers' class, and what else may stand in a config.json; what names the class stays."""
    kind = getattr(transformers, f"{FAMILIES[model_type]}Config")
    return sorted({field.name for field in dataclasses.fields(kind)} | set(EXTRA_KEYS) | set(ROPE_KEYS))


def draw_value(pick: random.Random, key: str, current: Any) -> Any:
    """A value for a key: near the current one, one of its kind, an odd one, or none."""
    way = pick.random()
    if way < 0.1:
        return REMOVED
    if way < 0.5 and key in WORDS:
        return pick.choice(WORDS[key])
    if way < 0.6 and isinstance(current, bool):
        return not current
    if way < 0.5 and isinstance(current, int):
        return max(0, current + pick.choice((-2, -1, 1, 2))) if pick.random() < 0.7 else 2 * current
    if way < 0.6 and isinstance(current, float):
        return current * pick.choice((0.1, 0.9, 1.1, 10.0))
    return pick.choice(ODD)


def log_uniform(pick: random.Random, low: float, high: float) -> float:
    return math.exp(pick.uniform(math.log(low), math.log(high)))


def draw_valid(pick: random.Random, model_type: str) -> dict[str, Any]:
    """A config that must be accepted."""
    heads = pick.choice((1, 2, 3, 4))
    hf = {
        "model_type": model_type,
        "vocab_size": pick.randint(11, 97),
        "hidden_size": heads * 2 * pick.randint(6, 16),
        "intermediate_size": pick.randint(3, 60),
        "num_hidden_layers": pick.choice((1, 2, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": pick.choice((16, 33, 64, 257)),
        "rms_norm_eps": log_uniform(pick, 1e-8, 1.0),
        "initializer_range": log_uniform(pick, 1e-3, 1.0),
        "tie_word_embeddings": pick.choice((True, False)),
        **draw_rope(pick, model_type),
    }
    if pick.random() < 0.3:
        hf |= {"hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0, "use_cache": False}
    return hf | DRAW_FAMILY[model_type](pick, hf)


def draw_rope(pick: random.Random, model_type: str) -> dict[str, Any]:
    """Rotary positions in one of the two ways to write them."""
    kind = pick.choice(("default", "default", "linear", "llama3", "yarn", "yarn"))
    theta = log_uniform(pick, 2.0, 1e6)
    section: dict[str, Any] = {pick.choice(("rope_type", "type")): kind}
    if kind != "default":
        section["factor"] = pick.uniform(1, 40)
    if kind in ("llama3", "yarn"):
        section["original_max_position_embeddings"] = pick.choice((4, 16, 64, 4096))
    if kind == "llama3":
        low = pick.uniform(0.1, 4)
        section |= {"low_freq_factor": low, "high_freq_factor": low + pick.uniform(0.1, 8)}
    if kind == "yarn" and pick.random() < 0.5:
        slow = pick.uniform(0.1, 4)
        section |= {"beta_slow": slow, "beta_fast": slow + pick.uniform(0.1, 40)}
    if kind == "yarn" and model_type in DEEPSEEK and pick.random() < 0.6:
        section |= {"mscale": pick.uniform(0.1, 2), "mscale_all_dim": pick.uniform(0.1, 2)}
    if pick.random() < 0.5:
        return {"rope_parameters": {**section, "rope_theta": theta}}
    return {"rope_theta": theta, "rope_scaling": section if kind != "default" else None}


def draw_grouped(pick: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    heads = hf["num_attention_heads"]
    return {"num_key_value_heads": pick.choice([each for each in range(1, heads + 1) if heads % each == 0])}


def draw_llama(pick: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    wide = {"head_dim": 2 * pick.randint(2, 10)} if pick.random() < 0.5 else {}
    return draw_grouped(pick, hf) | wide


def draw_qwen3(pick: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    return draw_grouped(pick, hf) | {
        "head_dim": 2 * pick.randint(2, 10),
        "use_sliding_window": False,
        "sliding_window": pick.choice((None, 4)),
    }


def draw_qwen3_moe(pick: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    experts = pick.randint(1, 9)
    return draw_llama(pick, hf) | {
        pick.choice(("num_experts", "num_local_experts")): experts,
        "num_experts_per_tok": pick.randint(1, experts),
        "moe_intermediate_size": pick.randint(3, 40),
        "norm_topk_prob": pick.choice((True, False)),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def draw_mistral(pick: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    return draw_llama(pick, hf) | {"sliding_window": pick.choice((None, 1, 4, 100))}


def draw_gemma2(pick: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    kinds = [pick.choice(("sliding_attention", "full_attention")) for _ in range(hf["num_hidden_layers"])]
    return draw_grouped(pick, hf) | {
        "head_dim": 2 * pick.randint(2, 10),
        "query_pre_attn_scalar": pick.randint(1, 40),
        "sliding_window": pick.choice((1, 4, 100)),
        "layer_types": pick.choice((None, kinds)),
        "attn_logit_softcapping": pick.choice((None, log_uniform(pick, 0.5, 60))),
        "final_logit_softcapping": pick.choice((None, log_uniform(pick, 0.5, 60))),
        "hidden_activation": "gelu_pytorch_tanh",
        **({} if "hidden_act" not in hf else {"hidden_act": "gelu_pytorch_tanh"}),
    }


def draw_gemma3(pick: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    """Rotary positions of either kind of layers have an object each, in the newer way to write them."""
    drawn, theta = {**draw_gemma2(pick, hf), "attn_logit_softcapping": None}, log_uniform(pick, 2.0, 1e6)
    if "rope_parameters" not in hf:
        renamed = {"rope_type" if key == "type" else key: value for key, value in (hf["rope_scaling"] or {}).items()}
        return drawn | {"rope_local_base_freq": theta, "rope_scaling": renamed or None}
    windowed = {"rope_type": "default", "rope_theta": theta}
    return drawn | {"rope_parameters": {"full_attention": hf["rope_parameters"], "sliding_attention": windowed}}


def draw_deepseek(pick: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    """What V2 and V3 share; groups of at least two experts."""
    groups, size = pick.choice((1, 2, 4)), pick.randint(2, 4)
    top_groups = pick.randint(1, groups)
    return {
        "first_k_dense_replace": pick.randint(0, hf["num_hidden_layers"]),
        "q_lora_rank": pick.choice((None, pick.randint(3, 40))),
        "kv_lora_rank": pick.randint(3, 40),
        "qk_nope_head_dim": pick.randint(1, 16),
        "qk_rope_head_dim": 2 * pick.randint(1, 8),
        "v_head_dim": pick.randint(1, 16),
        "moe_intermediate_size": pick.randint(3, 30),
        "n_routed_experts": groups * size,
        "n_shared_experts": pick.choice((1, 2)),
        "num_experts_per_tok": pick.randint(1, min(4, top_groups * size)),
        "n_group": groups,
        "topk_group": top_groups,
        "routed_scaling_factor": pick.uniform(0.1, 5),
    }


def draw_deepseek_v2(pick: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    """transformers rotates with complex numbers here, and views heads as such: their offsets must be even."""
    return draw_deepseek(pick, hf) | {
        "topk_method": pick.choice(("greedy", "group_limited_greedy")),
        "kv_lora_rank": 2 * pick.randint(2, 20),
        "qk_nope_head_dim": 2 * pick.randint(1, 8),
    }


def draw_deepseek_v3(pick: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    return draw_deepseek(pick, hf) | {
        "norm_topk_prob": pick.choice((True, False)),
        "rope_interleave": pick.choice((True, False)),
    }


DRAW_FAMILY: dict[str, Callable[[random.Random, dict[str, Any]], dict[str, Any]]] = {
    "llama": draw_llama,
    "qwen3": draw_qwen3,
    "qwen3_moe": draw_qwen3_moe,
    "deepseek_v2": draw_deepseek_v2,
    "deepseek_v3": draw_deepseek_v3,
    "mistral": draw_mistral,
    "gemma2": draw_gemma2,
    "gemma3_text": draw_gemma3,
}
