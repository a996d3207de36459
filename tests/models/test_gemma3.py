"""Gemma 3 (text): transformers' loss and gradients on odd sizes, its checkpoints there and back, what is refused."""

from typing import Any

import pytest

from monograph.errors import ConfigError
from monograph.models.gemma3 import hf as family
from monograph.models.gemma3.sizes import gemma3_1b
from tests.models.family_parity import check_parity, check_way_back
from tests.models.whole_loss import check_whole_loss

FULL, WINDOW = "full_attention", "sliding_attention"


def ropes(theta: float = 5000.0, window_theta: float = 300.0, **scaling: Any) -> dict[str, Any]:
    """Rotary positions of both kinds of layers."""
    return {
        FULL: {"rope_type": "default", "rope_theta": theta, **scaling},
        WINDOW: {"rope_type": "default", "rope_theta": window_theta},
    }


BASE = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "query_pre_attn_scalar": 14,
    "sliding_window": 7,
    "layer_types": [WINDOW, WINDOW, FULL],
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "rope_parameters": ropes(),
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
CASES: dict[str, dict[str, Any]] = {
    "two bases, tied": {},
    "stretched linearly, untied": {
        "rope_parameters": ropes(rope_type="linear", factor=8.0),
        "tie_word_embeddings": False,
    },
    "capped logits, one head of keys": {"final_logit_softcapping": 3.0, "num_key_value_heads": 1},
    "seven layers in the usual order": {"num_hidden_layers": 7, "layer_types": None, "head_dim": 6},
    "full first, nine heads": {
        "layer_types": [FULL, WINDOW],
        "num_hidden_layers": 2,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "sliding_window": 5,
    },
    "windows only, of two keys, untied": {
        "layer_types": [WINDOW, WINDOW, WINDOW],
        "sliding_window": 2,
        "tie_word_embeddings": False,
    },
    "yarn, a window wider than the text": {"rope_parameters": ropes(**YARN), "sliding_window": 100},
    "full layers only, a large eps": {
        "layer_types": [FULL],
        "num_hidden_layers": 1,
        "rms_norm_eps": 0.1,
        "query_pre_attn_scalar": 10,
        "final_logit_softcapping": 30.0,
    },
}
QUICK = ("two bases, tied", "stretched linearly, untied")
LONG = tuple(name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CASES)


@pytest.mark.parametrize("name", LONG)
def test_logits_the_whole_loss_and_all_gradients_equal_those_of_transformers(name, tmp_path):
    check_parity(tmp_path, "Gemma3Text", {**BASE, **CASES[name]})
    check_whole_loss(tmp_path, "Gemma3Text", {**BASE, **CASES[name]})


@pytest.mark.parametrize("name", LONG)
def test_a_checkpoint_goes_there_and_back_bit_for_bit(name, tmp_path):
    check_way_back(tmp_path, "Gemma3Text", {**BASE, **CASES[name]})


PUBLISHED = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "initializer_range": 0.02,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 262144,
}


def test_a_published_config_is_one_of_our_sizes_in_either_form():
    assert family.from_hf_config(PUBLISHED) == gemma3_1b()
    plain = {key: value for key, value in PUBLISHED.items() if not key.startswith("rope_")}
    assert family.from_hf_config({**plain, "rope_parameters": ropes(1e6, 1e4)}) == gemma3_1b()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "capped scores": ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    "biases": ({"attention_bias": True}, "attention_bias"),
    "no mask": ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    "another order": ({"sliding_window_pattern": 4}, "sliding_window_pattern"),
    "another activation": ({"hidden_activation": "silu"}, "hidden_activation"),
    "an older name of the kind": ({"rope_scaling": {"type": "linear", "factor": 8.0}}, "rope_scaling"),
    "one rope for both": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "rope_parameters"),
    "stretched windows": (
        {"rope_parameters": ropes() | {WINDOW: {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}},
        "rope_parameters.sliding_attention.rope_type",
    ),
    "images too": ({"model_type": "gemma3"}, "model_type"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_we_cannot_honour_is_refused_by_name(name):
    changes, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        family.from_hf_config({**PUBLISHED, **changes})


@pytest.mark.parametrize(("field", "value"), [("qk_norm", False), ("score_cap", 50.0)])
def test_attention_that_their_class_does_not_have_is_not_exported(field, value):
    config = gemma3_1b()
    config.attention = config.attention.replace(**{field: value})
    with pytest.raises(ConfigError, match=field):
        family.to_hf_config(config)
