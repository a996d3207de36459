"""Mistral: transformers' loss and gradients on odd sizes, its checkpoints there and back, what is refused."""

from typing import Any

import pytest

from monograph.errors import ConfigError
from monograph.models.mistral import hf as family
from monograph.models.mistral.sizes import mistral_7b, mistral_nemo_12b
from tests.models.family_parity import check_parity, check_way_back
from tests.models.whole_loss import check_whole_loss

BASE = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "sliding_window": 7,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES: dict[str, dict[str, Any]] = {
    "a short window, wide heads": {},
    "no window, tied": {"sliding_window": None, "tie_word_embeddings": True},
    "a window of two keys, one head of keys": {"sliding_window": 2, "num_key_value_heads": 1},
    "a window wider than the text": {"sliding_window": 100, "num_key_value_heads": 6},
    "five heads, one layer": {"num_attention_heads": 5, "num_key_value_heads": 5, "num_hidden_layers": 1},
    "heads of the width": {"head_dim": None, "hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3},
    "yarn, a large eps": {"rope_parameters": YARN, "rms_norm_eps": 0.1},
    "llama3's stretching, seven heads": {
        "rope_parameters": LLAMA3,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    },
}
QUICK = ("a short window, wide heads", "no window, tied")
LONG = tuple(name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CASES)


@pytest.mark.parametrize("name", LONG)
def test_logits_the_whole_loss_and_all_gradients_equal_those_of_transformers(name, tmp_path):
    check_parity(tmp_path, "Mistral", {**BASE, **CASES[name]})
    check_whole_loss(tmp_path, "Mistral", {**BASE, **CASES[name]})


@pytest.mark.parametrize("name", LONG)
def test_a_checkpoint_goes_there_and_back_bit_for_bit(name, tmp_path):
    check_way_back(tmp_path, "Mistral", {**BASE, **CASES[name]})


PUBLISHED = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 32000,
}
NEMO = {
    "hidden_size": 5120,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "num_hidden_layers": 40,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "vocab_size": 131072,
    "attention_dropout": 0.0,
}


@pytest.mark.parametrize(("changes", "size"), [({}, mistral_7b), (NEMO, mistral_nemo_12b)])
def test_a_published_config_is_one_of_our_sizes(changes, size):
    assert family.from_hf_config({**PUBLISHED, **changes}) == size()


def test_missing_keys_have_the_values_of_mistral_config():
    silent = {key: value for key, value in PUBLISHED.items() if key not in ("sliding_window", "num_key_value_heads")}
    assert family.from_hf_config(silent) == mistral_7b()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an empty window": ({"sliding_window": 0}, "sliding_window"),
    "biases": ({"attention_bias": True}, "attention_bias"),
    "dropout": ({"attention_dropout": 0.1}, "attention_dropout"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "layers of two kinds": ({"layer_types": ["sliding_attention", "full_attention"] * 16}, "layer_types"),
    "positions that scale scores": ({"rope_parameters": {"llama_4_scaling_beta": 0.1}}, "llama_4_scaling_beta"),
    "heads that do not divide": ({"num_key_value_heads": 5}, "num_key_value_heads"),
    "odd heads": ({"hidden_size": 4100, "head_dim": None, "num_attention_heads": 4}, "head_dim"),
    "an unknown key": ({"logit_scale": 0.5}, "logit_scale"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_we_cannot_honour_is_refused_by_name(name):
    changes, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        family.from_hf_config({**PUBLISHED, **changes})


def test_norms_of_queries_and_keys_are_not_exported():
    config = mistral_7b()
    config.attention.qk_norm = True
    with pytest.raises(ConfigError, match="qk_norm"):
        family.to_hf_config(config)
