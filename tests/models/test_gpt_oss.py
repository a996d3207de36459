"""gpt_oss: transformers' logits and gradients on odd sizes, its checkpoints there and back, MXFP4, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from monograph.errors import CheckpointError, ConfigError
from monograph.models.gpt_oss import hf as family
from monograph.models.gpt_oss.sizes import gpt_oss_20b, gpt_oss_120b
from monograph.models.hf_mxfp4 import unpack
from monograph.models.hf_tensors import import_tensors
from monograph.train.checkpoint.hf_folder import HfFolder
from monograph.train.checkpoint.hf_import import import_hf
from tests.models.family_parity import check_parity, check_way_back
from tests.models.whole_loss import check_whole_loss

YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 16,
}
BASE = {
    "vocab_size": 97,
    "hidden_size": 40,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 7,
    "max_position_embeddings": 128,
    "rope_parameters": YARN,
}
FULL, WINDOW = "full_attention", "sliding_attention"
CASES: dict[str, dict[str, Any]] = {
    "turns of windows": {},
    "three layers, one head of keys": {"num_hidden_layers": 3, "num_key_value_heads": 1},
    "full layers only": {"layer_types": [FULL, FULL]},
    "windows only, of one key": {"layer_types": [WINDOW, WINDOW], "sliding_window": 1},
    "full first": {"num_hidden_layers": 3, "layer_types": [FULL, FULL, WINDOW], "sliding_window": 5},
    "a window wider than the text": {"sliding_window": 100},
    "every expert": {"num_local_experts": 3, "num_experts_per_tok": 3, "intermediate_size": 7},
    "one expert a token": {"num_local_experts": 7, "num_experts_per_tok": 1, "num_key_value_heads": 4},
    "low limits": {"swiglu_limit": 0.4, "swiglu_alpha": 0.9, "hidden_size": 36, "head_dim": 10},
    "whole channels": {"rope_parameters": {**YARN, "truncate": True, "beta_fast": 4.0}},
    "no stretching, tied": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "tie_word_embeddings": True,
    },
    "a large eps": {"rms_norm_eps": 0.1, "num_attention_heads": 6, "num_key_value_heads": 3},
}
QUICK = ("turns of windows", "low limits", "no stretching, tied")
LONG = tuple(name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CASES)


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_equal_those_of_transformers(name, tmp_path):
    check_parity(tmp_path, "GptOss", {**BASE, **CASES[name]})


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("is_balanced", [False, True])
def test_the_whole_training_loss_and_its_gradient_equal_those_of_transformers(is_balanced, layers, tmp_path):
    switch = {"num_hidden_layers": layers, "output_router_logits": is_balanced, "router_aux_loss_coef": 0.9}
    check_whole_loss(tmp_path, "GptOss", {**BASE, **switch}, router="mlp.router.weight")


@pytest.mark.parametrize("name", LONG)
def test_a_checkpoint_goes_there_and_back_bit_for_bit(name, tmp_path):
    check_way_back(tmp_path, "GptOss", {**BASE, **CASES[name]})


def test_mxfp4_values_equal_those_of_transformers():
    exponents = torch.arange(255, dtype=torch.uint8)
    blocks = torch.arange(16, dtype=torch.uint8)[None, :] * 16 + torch.arange(16, dtype=torch.uint8)[:, None]
    every = blocks[None].expand(255, 16, 16).unsqueeze(0).contiguous()  # all pairs of values, for every exponent
    scales = exponents.view(1, 255, 1).expand(1, 255, 16).contiguous()
    found, expected = unpack(every, scales), convert_moe_packed_tensors(every, scales)
    assert found.shape == (1, 512, 255) and found.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(found, expected)


def write_packed(folder: Path, **changes: Any) -> dict[str, torch.Tensor]:
    """A checkpoint as it is published: experts in MXFP4, the rest in bf16."""
    generator = torch.Generator().manual_seed(3)
    hf = {
        **published(24, 32),
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "layer_types": [WINDOW],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "experts_per_token": 2,
    }
    config = family.from_hf_config(hf)
    with torch.device("meta"):
        state = config.build().state_dict()
    tensors = {}
    for entry in family.entries(config):
        shape, name = state[entry.ours].shape, entry.theirs[0]
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, width, out = shape
            size = (experts, out, width // 32, 16)
            tensors[f"{name}_blocks"] = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
            tensors[f"{name}_scales"] = torch.randint(110, 130, size[:-1], generator=generator, dtype=torch.uint8)
        else:
            tensors[name] = torch.randn(shape, generator=generator).to(torch.bfloat16)
    tensors = {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf))
    return tensors


def test_a_published_folder_is_imported_with_its_experts_in_bf16(tmp_path):
    tensors = write_packed(tmp_path)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    folder = HfFolder(tmp_path)
    expected = convert_moe_packed_tensors(tensors[f"{name}_blocks"], tensors[f"{name}_scales"])
    assert torch.equal(folder[name], expected)
    config = family.from_hf_config(folder.config)
    in_memory = import_tensors(family.entries(config), tensors)
    assert torch.equal(in_memory["layers.0.moe.experts.w13"], expected)
    moved = import_hf(tmp_path, tmp_path / "imported")
    assert moved.n_tensors == len(family.entries(config))
    saved = (tmp_path / "imported" / "import-00001.safetensors").read_bytes()
    assert expected.contiguous().view(torch.uint8).numpy().tobytes() in saved


GATE_UP = "model.layers.0.mlp.experts.gate_up_proj"
DAMAGED = {
    "no scales": ({f"{GATE_UP}_scales": None}, "gate_up_proj_scales is missing"),
    "no blocks": ({f"{GATE_UP}_blocks": None}, "gate_up_proj_blocks is missing"),
    "scales of another shape": (
        {f"{GATE_UP}_scales": torch.zeros(4, 64, 1, dtype=torch.uint8)},
        r"\[4, 64, 1\] instead of \[4, 64, 2\]",
    ),
    "no exponent": ({f"{GATE_UP}_scales": torch.full((4, 64, 2), 255, dtype=torch.uint8)}, "not an exponent"),
    "blocks in bf16": ({f"{GATE_UP}_blocks": torch.zeros(4, 64, 2, 16, dtype=torch.bfloat16)}, "not in uint8"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_mxfp4_is_refused_by_the_tensors_name(name, tmp_path):
    changes, words = DAMAGED[name]
    write_packed(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=words):
        import_hf(tmp_path, tmp_path / "imported")
    assert not (tmp_path / "imported").exists()


def published(n_layers: int, n_experts: int) -> dict[str, Any]:
    """The config.json of a published model, as far as it says anything about the model."""
    scaling = {key: value for key, value in YARN.items() if key != "rope_theta"}
    return {
        "model_type": "gpt_oss",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": 200002,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 2880,
        "layer_types": [WINDOW, FULL] * (n_layers // 2),
        "max_position_embeddings": 131072,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": n_layers,
        "num_key_value_heads": 8,
        "num_local_experts": n_experts,
        "output_router_logits": False,
        "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
        "rms_norm_eps": 1e-5,
        "rope_scaling": {**scaling, "factor": 32.0, "original_max_position_embeddings": 4096},
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": 201088,
    }


@pytest.mark.parametrize(("n_layers", "n_experts", "size"), [(24, 32, gpt_oss_20b), (36, 128, gpt_oss_120b)])
def test_a_published_config_is_one_of_our_sizes(n_layers, n_experts, size):
    found = family.from_hf_config(published(n_layers, n_experts))
    assert not found.moe.balance.is_on, "output_router_logits is false: transformers adds no loss to balance experts"
    assert found.replace(moe=found.moe.replace(balance=size().moe.balance)) == size()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no biases": ({"attention_bias": False}, "attention_bias"),
    "an unknown kind of layer": ({"layer_types": [WINDOW, "linear_attention"] * 12}, "layer_types"),
    "too few kinds": ({"layer_types": [WINDOW, FULL]}, "layer_types"),
    "a kind that is no word": ({"layer_types": [[]] * 24}, "layer_types"),
    "no window": ({"sliding_window": None}, "sliding_window"),
    "an empty window": ({"sliding_window": 0}, "sliding_window"),
    "another quantization": ({"quantization_config": {"quant_method": "fp8"}}, "quant_method"),
    "an option of the quantization": (
        {"quantization_config": {"quant_method": "mxfp4", "bits": 8}},
        "quantization_config.bits",
    ),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "no limit": ({"swiglu_limit": None}, "swiglu_limit"),
    "two numbers of choices": ({"experts_per_token": 2}, "experts_per_token"),
    "more choices than experts": ({"num_experts_per_tok": 40, "experts_per_token": 40}, "num_experts_per_tok"),
    "another first context": ({"initial_context_length": 8192}, "initial_context_length"),
    "positions left open": ({"rope_scaling": None, "rope_theta": None}, "rope_scaling"),
    "dropout": ({"attention_dropout": 0.1}, "attention_dropout"),
    "balance without a weight": ({"output_router_logits": True, "router_aux_loss_coef": None}, "router_aux_loss_coef"),
    "a negative balance": ({"output_router_logits": True, "router_aux_loss_coef": -1}, "router_aux_loss_coef"),
    "an unknown key": ({"logit_softcap": 30.0}, "logit_softcap"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_we_cannot_honour_is_refused_by_name(name):
    changes, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        family.from_hf_config({**published(24, 32), **changes})


@pytest.mark.parametrize("field", ["score", "norm", "scale", "expert_bias", "force_balance"])
def test_a_router_that_their_class_does_not_have_is_not_exported(field):
    config = gpt_oss_20b()
    other = {"score": "sigmoid", "norm": False, "scale": 2.0}.get(field, True)
    config.moe.router = config.moe.router.replace(**{field: other})
    with pytest.raises(ConfigError, match=field):
        family.to_hf_config(config)
