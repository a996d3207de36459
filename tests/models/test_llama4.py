"""Llama 4: transformers' logits and gradients on odd sizes, its checkpoints there and back, what is refused."""

import json
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.models.llama4 import modeling_llama4

from monograph.errors import CheckpointError, ConfigError
from monograph.models.init import initialize, reset
from monograph.models.llama4 import hf as family
from monograph.models.llama4.config import Llama4Config
from monograph.models.llama4.sizes import llama4_debugmodel, llama4_maverick, llama4_scout
from monograph.train.checkpoint.hf_export import export_hf
from monograph.train.checkpoint.hf_import import import_hf
from monograph.train.checkpoint.hf_weights import HfWeights
from monograph.train.checkpoint.verify import MODEL_PREFIX
from tests.models.family_parity import check_parity, check_way_back, read_ours, write_model

STEPPED = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 1.0,
    "original_max_position_embeddings": 32,
}
BASE = {
    "vocab_size": 97,
    "hidden_size": 40,
    "intermediate_size": 24,
    "intermediate_size_mlp": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_local_experts": 5,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 11,
    "no_rope_layer_interval": 2,
    "floor_scale": 7,
    "max_position_embeddings": 128,
    "rope_parameters": STEPPED,
    "pad_token_id": None,
}
PLAIN = {"rope_type": "default", "rope_theta": 1000.0}
CASES: dict[str, dict[str, Any]] = {
    "chunks and whole texts": {},
    "experts in every second layer": {"num_hidden_layers": 4, "interleave_moe_layer_step": 2},
    "no norms, plain RoPE": {"use_qk_norm": False, "rope_parameters": PLAIN, "num_key_value_heads": 1},
    "two experts a token": {"num_experts_per_tok": 2, "num_local_experts": 3, "intermediate_size": 7},
    "no temperature": {"attn_temperature_tuning": False, "num_attention_heads": 6, "num_key_value_heads": 3},
    "strong temperature": {"attn_scale": 2.5, "floor_scale": 3, "no_rope_layers": [0, 0]},
    "chunks only": {"no_rope_layers": [1, 1, 1], "num_hidden_layers": 3, "attention_chunk_size": 5},
    "lists of layers": {"num_hidden_layers": 3, "moe_layers": [0, 2], "no_rope_layers": [0, 1, 1]},
    "chunks longer than the text": {"attention_chunk_size": 100, "hidden_size": 36},
    "tied, a large eps": {"tie_word_embeddings": True, "rms_norm_eps": 0.1, "head_dim": 6},
    "fading llama3": {"rope_parameters": {**STEPPED, "high_freq_factor": 4.0}, "num_hidden_layers": 5},
}
QUICK = ("experts in every second layer", "two experts a token", "lists of layers")
LONG = tuple(name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CASES)


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_equal_those_of_transformers(name, tmp_path):
    check_parity(tmp_path, "Llama4Text", {**BASE, **CASES[name]})


@pytest.mark.parametrize("name", LONG)
def test_a_checkpoint_goes_there_and_back_bit_for_bit(name, tmp_path):
    check_way_back(tmp_path, "Llama4Text", {**BASE, **CASES[name]})


def test_temperatures_multiply_narrow_queries_in_float32_as_transformers_does(tmp_path, monkeypatch):
    values = {**BASE, "attn_scale": 0.7, "no_rope_layers": [0, 0], "num_hidden_layers": 2}
    theirs = write_model(tmp_path, "Llama4Text", values).bfloat16()
    _, config, ours = read_ours(tmp_path)
    attention, temperature = ours.layers[0].attention.bfloat16(), ours.temperature
    x = torch.randn(2, 48, config.dim, generator=torch.Generator().manual_seed(1)).bfloat16()
    seen = {}

    def keep(module, query, *_args, **_kwargs):
        seen["query"] = query.transpose(1, 2)
        return torch.zeros_like(seen["query"]), None

    monkeypatch.setattr(modeling_llama4, "eager_attention_forward", keep)
    theirs.model.layers[0].self_attn(x, None, None)
    q = attention.wq(x).unflatten(-1, (-1, attention.head_dim))
    found, _ = attention.place(q, q, temperature(48))
    assert found.dtype == torch.bfloat16 and not torch.equal(found, q)
    assert torch.equal(found, seen["query"])


def write_with_pictures(folder) -> torch.nn.Module:
    """A tiny model that reads pictures too, as they save it."""
    torch.manual_seed(0)
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sizes = {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16, "image_size": 28}
    text = {key: value for key, value in BASE.items() if key != "pad_token_id"}
    text |= {"num_hidden_layers": 2, "interleave_moe_layer_step": 2}
    config = transformers.Llama4Config(
        text_config=text, vision_config={**vision, **sizes, "patch_size": 14}, attn_implementation="eager"
    )
    model = transformers.Llama4ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    return model


def test_the_text_part_of_a_model_with_pictures_is_imported_and_computes_the_same(tmp_path):
    theirs = write_with_pictures(tmp_path / "theirs")
    weights = HfWeights(tmp_path / "theirs")
    ours = weights.config.build()
    reset(ours)
    state = {spec.key.removeprefix(MODEL_PREFIX): torch.cat(list(weights.read(spec))) for spec in weights.specs}
    ours.load_state_dict({name: state[name].view(tensor.shape) for name, tensor in ours.state_dict().items()})
    tokens = torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = theirs(tokens).logits, ours.predict(tokens)
    assert (expected - found).abs().max() <= 1e-5 * expected.abs().max()
    moved = import_hf(tmp_path / "theirs", tmp_path / "imported")
    export_hf(tmp_path / "imported", tmp_path / "exported")
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert moved.n_tensors == len(exported) < len(stored)
    assert all(torch.equal(tensor, stored[f"language_model.{name}"]) for name, tensor in exported.items())
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported", attn_implementation="eager")
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens).logits, expected)


def test_a_tensor_that_no_part_explains_is_refused(tmp_path):
    write_with_pictures(tmp_path / "theirs")
    hf = json.loads((tmp_path / "theirs" / "config.json").read_text())
    hf["text_config"]["num_hidden_layers"] = 1
    for key in ("layer_types", "no_rope_layers", "moe_layers"):
        hf["text_config"].pop(key, None)
    hf["text_config"]["interleave_moe_layer_step"] = 1
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(hf))
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\."):
        HfWeights(tmp_path / "theirs")


def published(**changes: Any) -> dict[str, Any]:
    """The config.json of a published model, as far as it says anything about the text part."""
    text = {
        "attention_bias": False,
        "attention_chunk_size": 8192,
        "attention_dropout": 0.0,
        "bos_token_id": 200000,
        "for_llm_compressor": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "initializer_range": 0.02,
        "interleave_moe_layer_step": 1,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "max_position_embeddings": 10485760,
        "model_type": "llama4_text",
        "no_rope_layers": [],
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "output_router_logits": False,
        "pad_token_id": 200018,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "factor": 16.0,
            "high_freq_factor": 1.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
        "use_cache": True,
        "use_qk_norm": True,
        "vocab_size": 202048,
    }
    return {
        "model_type": "llama4",
        "boi_token_index": 200080,
        "eoi_token_index": 200081,
        "image_token_index": 200092,
        "text_config": {**text, **changes},
        "vision_config": {"model_type": "llama4_vision_model", "hidden_size": 1408},
    }


def test_published_configs_are_our_sizes():
    assert read_published() == llama4_scout()
    maverick = {"num_local_experts": 128, "interleave_moe_layer_step": 2, "use_qk_norm": False}
    maverick |= {"rope_scaling": None, "max_position_embeddings": 1048576, "moe_layers": list(range(1, 48, 2))}
    assert read_published(**maverick) == llama4_maverick()


def read_published(**changes: Any) -> Llama4Config:
    """A published config, with the balance of our recipes: transformers' Llama 4 has no loss for it."""
    config = family.from_hf_config(published(**changes))
    assert not config.moe.balance.is_on
    return config.replace(moe=config.moe.replace(balance=llama4_scout().moe.balance))


def test_a_model_for_a_length_computes_what_the_whole_one_does_for_texts_of_that_length():
    config = llama4_debugmodel()
    whole, short = (initialized(each) for each in (config, config.for_length(40)))
    assert (whole.rope.cos.shape[0], short.rope.cos.shape[0], short.temperature.table.shape[0]) == (2048, 40, 40)
    tokens = torch.randint(0, 512, (2, 40), generator=torch.Generator().manual_seed(1))
    assert torch.equal(short.predict(tokens), whole.predict(tokens))
    assert config.for_length(5000) is config


def initialized(config: Llama4Config) -> torch.nn.Module:
    model = config.build()
    initialize(model, 0)
    return model


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "biases": ({"attention_bias": True}, "attention_bias"),
    "no chunks": ({"attention_chunk_size": None}, "attention_chunk_size"),
    "chunks elsewhere": ({"layer_types": ["full_attention"] * 48}, "layer_types"),
    "a list that is too short": ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
    "numbers that are no switch": ({"no_rope_layers": [2] * 48}, "no_rope_layers"),
    "no experts": ({"moe_layers": []}, "moe_layers"),
    "experts beyond the last layer": ({"moe_layers": [48]}, "moe_layers"),
    "an interval of nothing": ({"interleave_moe_layer_step": 0}, "interleave_moe_layer_step"),
    "noise": ({"router_jitter_noise": 0.1}, "router_jitter_noise"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "no hidden layer": ({"intermediate_size_mlp": None}, "intermediate_size_mlp"),
    "no steps": ({"floor_scale": 0}, "floor_scale"),
    "a text for a switch": ({"attn_temperature_tuning": "yes"}, "attn_temperature_tuning"),
    "an unknown key": ({"logit_softcap": 30.0}, "logit_softcap"),
    "another quantization": ({"quantization_config": {"quant_method": "fbgemm_fp8"}}, "quant_method"),
    "another type": ({"model_type": "llama4_vision_model"}, "model_type"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_we_cannot_honour_is_refused_by_name(name):
    changes, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        family.from_hf_config(published(**changes))


def test_a_quantized_model_with_pictures_is_refused_by_its_outer_setting():
    with pytest.raises(ConfigError, match="quantization_config"):
        family.from_hf_config({**published(), "quantization_config": {"quant_method": "compressed-tensors"}})


@pytest.mark.parametrize("field", ["score", "norm", "scale", "expert_bias", "force_balance"])
def test_a_router_that_their_class_does_not_have_is_not_exported(field):
    config = llama4_debugmodel()
    other = {"score": "softmax", "norm": True, "scale": 2.0}.get(field, True)
    config.moe.router = config.moe.router.replace(**{field: other})
    with pytest.raises(ConfigError, match=field):
        family.to_hf_config(config)
