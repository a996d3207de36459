"""Published config.json files become our published sizes, and back; what we cannot compute is refused."""

import importlib
import json
import math
from pathlib import Path

import pytest
import torch

from monograph.errors import CheckpointError, ConfigError
from monograph.models.config import AttentionConfig, MoeConfig, RopeConfig, RouterConfig
from monograph.models.hf_families import find_family, find_family_of
from monograph.models.hf_map import Entry
from monograph.models.hf_tensors import import_tensors
from tests.kit.small import SMALL, small_deepseek_v3, small_llama3, small_qwen3

FOLDER = Path(__file__).parent / "hf_configs"
SIGMOID = RouterConfig(score="sigmoid", expert_bias=True)
SIZES = {
    "llama_3_1_8b": "llama3_8b",
    "llama_3_2_1b": "llama3_1b",
    "qwen3_0_6b": "qwen3_0_6b",
    "qwen3_30b_a3b": "qwen3_30b_a3b",
    "deepseek_v2_lite": "deepseek_v3_16b",
    "deepseek_v2": "deepseek_v3_236b",
    "deepseek_v3": "deepseek_v3_671b",
}


def read(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text())


def find_size(name: str):
    family = next(family for family in SMALL if name.startswith(family + "_"))
    return getattr(importlib.import_module(f"monograph.models.{family}.sizes"), name)()


@pytest.mark.parametrize("published, size", SIZES.items())
def test_a_published_config_is_one_of_our_sizes(published, size):
    hf = read(published)
    found, expected = find_family(hf["model_type"]).from_hf_config(hf), find_size(size)
    if expected.find_moe() is not None:  # Qwen3's switches its loss off, DeepSeek's has no switch; papers say more
        assert found.moe.balance.coefficient == (0.0 if published.startswith("qwen3") else 0.001)
        found.moe.balance = expected.moe.balance
        if expected.moe.router.expert_bias:
            assert found.moe.router.bias_update_rate == 0, "an import keeps its biases, pre-training moves them"
            found.moe.router.bias_update_rate = expected.moe.router.bias_update_rate
    assert found == expected


@pytest.mark.parametrize("published", SIZES)
def test_a_config_we_write_says_what_the_published_one_says(published):
    hf = read(published)
    family = find_family(hf["model_type"])
    config = family.from_hf_config(hf)
    written = family.to_hf_config(config)
    assert family.from_hf_config(written) == config
    ours_only = {"num_nextn_predict_layers", "rope_scaling"}  # we keep no extra heads; "type" is now "rope_type"
    differing = {key for key in written.keys() & hf.keys() - ours_only if written[key] != hf[key]}
    assert not differing
    scaling, expected = written["rope_scaling"] or {}, hf["rope_scaling"] or {}
    assert scaling == {"rope_type" if key == "type" else key: value for key, value in expected.items()}


@pytest.mark.parametrize("published", SIZES)
def test_both_ways_to_write_rotary_positions_mean_the_same(published):
    hf = read(published)
    family = find_family(hf["model_type"])
    expected = family.from_hf_config(hf)
    scaling = hf.pop("rope_scaling") or {"rope_type": "default"}
    hf["rope_parameters"] = {**scaling, "rope_theta": hf.pop("rope_theta")}
    assert family.from_hf_config(hf) == expected


@pytest.mark.parametrize("published, size", SIZES.items())
def test_the_map_names_every_tensor_of_the_model_once(published, size):
    config = find_size(size)
    with torch.device("meta"):
        model = config.build()
    entries = find_family_of(config).entries(config)
    owned = {name for name, _ in model.named_parameters()} | {
        name for name in model.state_dict() if name.endswith("expert_bias")
    }
    assert sorted(entry.ours for entry in entries) == sorted(owned)
    theirs = [name for entry in entries for name in entry.theirs]
    assert len(set(theirs)) == len(theirs)
    state = model.state_dict()
    assert all(len(entry.theirs) == state[entry.ours].shape[0] for entry in entries if entry.stacked)


REFUSED = {
    "another activation": ("llama_3_1_8b", {"hidden_act": "gelu"}, "hidden_act"),
    "biases": ("llama_3_1_8b", {"attention_bias": True}, "attention_bias"),
    "another rope": ("llama_3_1_8b", {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
    "partly rotated": ("llama_3_1_8b", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "another quantization": ("llama_3_1_8b", {"quantization_config": {"quant_method": "awq"}}, "awq"),
    "sliding windows": ("qwen3_0_6b", {"use_sliding_window": True}, "use_sliding_window"),
    "mixed blocks": ("qwen3_30b_a3b", {"decoder_sparse_step": 2}, "decoder_sparse_step"),
    "dense blocks inside": ("qwen3_30b_a3b", {"mlp_only_layers": [0]}, "mlp_only_layers"),
    "shared key heads": ("deepseek_v3", {"num_key_value_heads": 8}, "num_key_value_heads"),
    "softmax in V3": ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func"),
    "a missing size": ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank"),
    "dropout": ("llama_3_1_8b", {"attention_dropout": 0.1}, "attention_dropout"),
    "no causal mask": ("llama_3_1_8b", {"is_causal": False}, "is_causal"),
    "windows without a switch": ("llama_3_1_8b", {"sliding_window": 64}, "sliding_window"),
    "layers of another type": ("qwen3_0_6b", {"layer_types": ["sliding_attention"] * 28}, "layer_types"),
    "other settings in a layer": ("llama_3_1_8b", {"per_layer_config": {"0": {}}}, "per_layer_config"),
    "an unknown key": ("llama_3_1_8b", {"logit_scale": 0.5}, "logit_scale"),
    "a typo": ("llama_3_1_8b", {"rms_norm_epz": 1e-6}, "did you mean 'rms_norm_eps'"),
    "an option of another rope": ("llama_3_1_8b", {"rope_scaling": {"rope_type": "default", "factor": 4.0}}, "factor"),
    "two ropes": ("llama_3_1_8b", {"rope_parameters": {"rope_type": "default"}}, "rope_scaling"),
    "length in two places": (
        "llama_3_1_8b",
        {"original_max_position_embeddings": 4096},
        "original_max_position_embeddings",
    ),
    "the layout left open": ("deepseek_v3", {"rope_interleave": None}, "rope_interleave"),
    "no groups named": ("deepseek_v3", {"n_group": None}, "n_group"),
    "another head width": ("deepseek_v3", {"head_dim": 128}, "head_dim"),
    "no shared experts": ("deepseek_v3", {"n_shared_experts": 0}, "n_shared_experts"),
    "two numbers of experts": ("qwen3_30b_a3b", {"num_local_experts": 64}, "num_local_experts"),
    "heads that do not divide": ("llama_3_1_8b", {"num_key_value_heads": 5}, "num_key_value_heads"),
    "more choices than experts": ("deepseek_v3", {"num_experts_per_tok": 200}, "num_experts_per_tok"),
    "an older quantization": ("llama_3_1_8b", {"compression_config": {"quant_method": "x"}}, "compression_config"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_config_we_cannot_honour_is_refused_by_name(name):
    published, changes, word = REFUSED[name]
    hf = {**read(published), **changes}
    with pytest.raises(ConfigError, match=word):
        find_family(hf["model_type"]).from_hf_config(hf)


MALFORMED = (None, True, "8", "", [], [8], {}, 4.5, -8, 0, 10**30, 10**400, math.nan, math.inf, 1e300)
SIZES_OF = {
    "llama_3_1_8b": ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    "qwen3_30b_a3b": ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "max_position_embeddings"),
    "deepseek_v3": ("kv_lora_rank", "qk_rope_head_dim", "n_group", "topk_group", "n_routed_experts", "v_head_dim"),
}


@pytest.mark.parametrize(("published", "key"), [(name, key) for name, keys in SIZES_OF.items() for key in keys])
def test_a_malformed_size_is_refused_by_name(published, key):
    for value in MALFORMED:
        hf = {**read(published), key: value}
        with pytest.raises(ConfigError, match=key):
            find_family(hf["model_type"]).from_hf_config(hf)


@pytest.mark.parametrize("key", ["rms_norm_eps", "routed_scaling_factor", "initializer_range", "rope_theta"])
@pytest.mark.parametrize("value", [*MALFORMED[:7], -8.0, 0.0, 10**400, math.nan, math.inf])
def test_a_malformed_number_is_refused_by_name(key, value):
    hf = {**read("deepseek_v3"), key: value}
    with pytest.raises(ConfigError, match=key):
        find_family(hf["model_type"]).from_hf_config(hf)


@pytest.mark.parametrize("key", ["factor", "beta_fast", "mscale", "original_max_position_embeddings"])
@pytest.mark.parametrize("value", [True, "8", [8], -8.0, 10**400, math.nan, math.inf, 1e300])
def test_a_malformed_rope_option_is_refused_by_name(key, value):
    hf = read("deepseek_v3")
    hf["rope_scaling"] = {**hf["rope_scaling"], key: value}
    with pytest.raises(ConfigError, match=key):
        find_family(hf["model_type"]).from_hf_config(hf)


def test_a_model_their_classes_cannot_compute_is_not_exported():
    sigmoid = small_qwen3()
    sigmoid.moe.router = RouterConfig(top_k=2, score="sigmoid")
    unbiased = small_deepseek_v3()
    unbiased.moe.router.expert_bias = False
    half = small_deepseek_v3()
    half.moe.router = RouterConfig(top_k=2, norm=False)
    half.rope = RopeConfig(max_seq_len=64)
    scaled = small_llama3(rope=RopeConfig(scaling="yarn", factor=4.0, mscale_all_dim=1.0))
    shared = small_qwen3()
    shared.moe.n_shared_experts = 1
    uneven = small_llama3(attention=AttentionConfig(n_heads=3, n_kv_heads=3, head_dim=8))
    eps = small_deepseek_v3()
    eps.attention.latent_norm_eps = 1e-5
    lonely = small_deepseek_v3(moe=MoeConfig(n_experts=1, n_shared_experts=1, router=SIGMOID))
    for field, config in {
        "score": sigmoid,
        "expert_bias": unbiased,
        "layout": half,
        "mscale_all_dim": scaled,
        "n_shared_experts": shared,
        "num_attention_heads": uneven,
        "latent_norm_eps": eps,
        "n_routed_experts": lonely,
    }.items():
        with pytest.raises(ConfigError, match=field):
            find_family_of(config).to_hf_config(config)


def test_whole_numbers_are_exported_as_the_floats_their_classes_want():
    config = small_deepseek_v3(norm_eps=1, init_std=1)
    config.moe.router.scale = 2
    written = find_family_of(config).to_hf_config(config)
    for key in ("rms_norm_eps", "initializer_range", "routed_scaling_factor"):
        assert type(written[key]) is float


def test_an_unknown_model_type_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="qwen3_moe"):
        find_family("qwen3_mo")


def test_extra_tensors_are_known_and_others_are_not():
    v3, config = find_family("deepseek_v3"), find_size("deepseek_v3_671b")
    assert v3.is_ignored(config, "model.layers.61.mlp.experts.0.up_proj.weight")
    assert not v3.is_ignored(config, "model.layers.60.mlp.experts.0.up_proj.weight")
    llama, tied = find_family("llama"), find_size("llama3_1b")
    assert llama.is_ignored(tied, "lm_head.weight") and not llama.is_ignored(find_size("llama3_8b"), "lm_head.weight")
    assert not llama.is_ignored(tied, "model.layers.0.self_attn.q_proj.bias")


def test_a_missing_tensor_is_named():
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        import_tensors([Entry("head.norm.weight", ("model.norm.weight",))], {})
