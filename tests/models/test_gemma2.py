"""Gemma 2: transformers' loss and gradients on odd sizes, its checkpoints there and back, what is refused."""

from typing import Any

import pytest

from monograph.errors import ConfigError
from monograph.models.gemma2 import hf as family
from monograph.models.gemma2.sizes import gemma2_2b, gemma2_9b, gemma2_27b
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
    "query_pre_attn_scalar": 14,
    "sliding_window": 7,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
"""Caps so low that they bend scores and logits; with a pad token transformers gives its row no gradient."""
FULL, WINDOW = "full_attention", "sliding_attention"
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
CASES: dict[str, dict[str, Any]] = {
    "low caps, tied": {},
    "no caps, untied": {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "tie_word_embeddings": False,
    },
    "scores capped alone, untied": {"final_logit_softcapping": None, "tie_word_embeddings": False},
    "logits capped alone, one head of keys": {"attn_logit_softcapping": None, "num_key_value_heads": 1},
    "three layers, full first": {"num_hidden_layers": 3, "layer_types": [FULL, WINDOW, WINDOW], "sliding_window": 5},
    "nine heads, windows only, of two keys": {
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "layer_types": [WINDOW, WINDOW],
        "sliding_window": 2,
    },
    "full layers, published caps, a large eps": {
        "layer_types": [FULL, FULL],
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "rms_norm_eps": 0.1,
    },
    "yarn, a window wider than the text": {
        "rope_parameters": YARN,
        "sliding_window": 100,
        "query_pre_attn_scalar": 10,
        "num_hidden_layers": 1,
    },
}
QUICK = ("low caps, tied", "no caps, untied")
LONG = tuple(name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CASES)


@pytest.mark.parametrize("name", LONG)
def test_logits_the_whole_loss_and_all_gradients_equal_those_of_transformers(name, tmp_path):
    check_parity(tmp_path, "Gemma2", {**BASE, **CASES[name]})
    check_whole_loss(tmp_path, "Gemma2", {**BASE, **CASES[name]})


@pytest.mark.parametrize("name", LONG)
def test_a_checkpoint_goes_there_and_back_bit_for_bit(name, tmp_path):
    check_way_back(tmp_path, "Gemma2", {**BASE, **CASES[name]})


PUBLISHED = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "torch_dtype": "float32",
    "use_cache": True,
    "vocab_size": 256000,
}
LARGER = {"hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16, "num_hidden_layers": 42}
LARGEST = {
    **{"hidden_size": 4608, "intermediate_size": 36864, "num_attention_heads": 32, "num_hidden_layers": 46},
    **{"head_dim": 128, "num_key_value_heads": 16, "query_pre_attn_scalar": 144},
}
PUBLISHED_SIZES = [({}, gemma2_2b), (LARGER | {"num_key_value_heads": 8}, gemma2_9b), (LARGEST, gemma2_27b)]


@pytest.mark.parametrize(("changes", "size"), PUBLISHED_SIZES)
def test_a_published_config_is_one_of_our_sizes(changes, size):
    assert family.from_hf_config({**PUBLISHED, **changes}) == size()


def test_missing_keys_have_the_values_of_gemma2_config():
    silent = {key: value for key, value in PUBLISHED.items() if key not in family.UNSTATED}
    assert family.from_hf_config(silent) == gemma2_2b()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "biases": ({"attention_bias": True}, "attention_bias"),
    "no mask": ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    "another activation": ({"hidden_activation": "gelu"}, "hidden_activation"),
    "dropout": ({"attention_dropout": 0.1}, "attention_dropout"),
    "no window": ({"sliding_window": None}, "sliding_window"),
    "an unknown kind of layer": ({"layer_types": ["chunked_attention"] * 26}, "layer_types"),
    "too few kinds": ({"layer_types": [WINDOW]}, "layer_types"),
    "a cap of nothing": ({"attn_logit_softcapping": 0.0}, "attn_logit_softcapping"),
    "a negative cap": ({"final_logit_softcapping": -30.0}, "final_logit_softcapping"),
    "a scalar of nothing": ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    "heads that do not divide the width": ({"num_attention_heads": 7, "num_key_value_heads": 7}, "num_attention_heads"),
    "an unknown key": ({"logit_scale": 0.5}, "logit_scale"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_we_cannot_honour_is_refused_by_name(name):
    changes, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        family.from_hf_config({**PUBLISHED, **changes})


@pytest.mark.parametrize(("field", "value"), [("qk_norm", True), ("score_dim", 2.5)])
def test_attention_that_their_class_does_not_have_is_not_exported(field, value):
    config = gemma2_2b()
    config.attention = config.attention.replace(**{field: value})
    with pytest.raises(ConfigError, match=field):
        family.to_hf_config(config)


@pytest.mark.parametrize("kernel", ["cudnn", "flash", "flex"])
def test_a_kernel_without_caps_is_refused_where_scores_have_one(kernel):
    with pytest.raises(ConfigError, match=r"score_cap is 50\.0"):
        gemma2_2b().attention.replace(kernel=kernel).check()
