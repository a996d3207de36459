"""Our models give the logits of transformers' models, from the folders transformers writes."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from monograph.config.configurable import check_config
from monograph.models.hf_families import find_family, find_family_of
from monograph.models.hf_tensors import export_tensors, import_tensors
from monograph.models.init import reset
from tests.models.whole_loss import check_whole_loss

SHARED = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 112, "num_attention_heads": 4}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
DEEPSEEK_YARN = {**YARN_ROPE, "mscale": 0.707, "mscale_all_dim": 0.9, "beta_fast": 16, "beta_slow": 2}
QWEN_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 40,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
}
CASES = {
    "llama grouped queries": ("Llama", {"num_key_value_heads": 2}),
    "llama tied": ("Llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama scaled rope, wide heads": (
        "Llama",
        {"num_key_value_heads": 1, "rope_parameters": LLAMA3_ROPE, "head_dim": 32},
    ),
    "llama yarn": ("Llama", {"num_key_value_heads": 2, "rope_parameters": YARN_ROPE}),
    "qwen2 tied": ("Qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2 untied": ("Qwen2", {"num_key_value_heads": 4, "rope_parameters": YARN_ROPE}),
    "qwen3 tied": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True}),
    "qwen3 untied": ("Qwen3", {"num_key_value_heads": 4, "head_dim": 16}),
    "qwen3 moe": ("Qwen3Moe", {"num_key_value_heads": 2, "head_dim": 32, **QWEN_MOE}),
    "qwen3 moe not normalised": ("Qwen3Moe", {"num_key_value_heads": 1, **QWEN_MOE, "norm_topk_prob": False}),
    "deepseek v3": (
        "DeepseekV3",
        {**DEEPSEEK, "q_lora_rank": 32, "n_group": 4, "topk_group": 2, "rope_parameters": DEEPSEEK_YARN},
    ),
    "deepseek v3 direct queries, no groups": (
        "DeepseekV3",
        {**DEEPSEEK, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    ),
    "deepseek v3 half layout, two shared experts": (
        "DeepseekV3",
        {**DEEPSEEK, "q_lora_rank": 16, "n_group": 2, "topk_group": 1, "rope_interleave": False, "n_shared_experts": 2},
    ),
    "deepseek v2 greedy": (
        "DeepseekV2",
        {**DEEPSEEK, "q_lora_rank": None, "topk_method": "greedy", "rope_parameters": DEEPSEEK_YARN},
    ),
    "deepseek v2 groups": (
        "DeepseekV2",
        {
            **DEEPSEEK,
            "q_lora_rank": 32,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 4.0,
        },
    ),
}


def write_folder(folder: Path, family: str, overrides: dict) -> torch.nn.Module:
    """A random model of theirs, with weights large enough that a wrong formula shows, saved as they save it."""
    torch.manual_seed(0)
    values = {
        **SHARED,
        "num_hidden_layers": 2,
        "max_position_embeddings": 128,
        "attn_implementation": "eager",
        **overrides,
    }
    config = getattr(transformers, f"{family}Config")(**values)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            else:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=0.2)
    model.save_pretrained(folder)
    return model


def read_folder(folder: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(name, tmp_path):
    check_logits(write_folder(tmp_path, *CASES[name]), tmp_path)


def check_logits(theirs: torch.nn.Module, folder: Path, *, length: int = 96) -> None:
    """Our model of the folder gives the logits of theirs."""
    hf, tensors = read_folder(folder)
    family = find_family(hf["model_type"])
    config = family.from_hf_config(hf)
    check_config(config)
    ours = config.build().eval()
    reset(ours)
    ours.load_state_dict(import_tensors(family.entries(config), tensors), strict=not config.tied_embeddings)
    tokens = torch.randint(0, SHARED["vocab_size"], (2, length), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = theirs(tokens).logits, ours.predict(tokens)
    assert expected.abs().max() > 1
    assert (expected - found).abs().max().item() <= 1e-5 * expected.abs().max().item()


EPS_CASES = ("llama grouped queries", "qwen3 moe", "deepseek v3", "deepseek v2 groups")


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1e-2, 0.2])
@pytest.mark.parametrize("name", EPS_CASES)
def test_logits_equal_those_of_transformers_for_any_norm_eps(name, eps, tmp_path):
    family, overrides = CASES[name]
    check_logits(write_folder(tmp_path, family, {**overrides, "rms_norm_eps": eps}), tmp_path)


SHORT_CONTEXTS = (1, 4, 7, 4096)


@pytest.mark.parametrize("length", SHORT_CONTEXTS)
def test_yarn_follows_transformers_for_any_original_length(length, tmp_path):
    rope = {**YARN_ROPE, "original_max_position_embeddings": length, "rope_theta": 20.0}
    theirs = write_folder(tmp_path, "Llama", {"num_key_value_heads": 2, "rope_parameters": rope})
    check_logits(theirs, tmp_path, length=32)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("is_balanced", [False, True])
def test_qwen3s_whole_training_loss_and_its_gradient_equal_those_of_transformers(is_balanced, layers, tmp_path):
    switch = {"num_hidden_layers": layers, "output_router_logits": is_balanced, "router_aux_loss_coef": 0.5}
    values = {**SHARED, **CASES["qwen3 moe"][1], **switch}
    check_whole_loss(tmp_path, "Qwen3Moe", values, router="mlp.gate.weight")


@pytest.mark.parametrize("name", CASES)
def test_import_export_import_keeps_every_bit(name, tmp_path):
    write_folder(tmp_path, *CASES[name])
    hf, tensors = read_folder(tmp_path)
    family = find_family(hf["model_type"])
    config = family.from_hf_config(hf)
    entries = family.entries(config)
    state = import_tensors(entries, tensors)
    exported = export_tensors(entries, state)
    needed = {key for key in tensors if not family.is_ignored(config, key)}
    assert exported.keys() == needed
    assert all(torch.equal(exported[key], tensors[key]) and exported[key].dtype == tensors[key].dtype for key in needed)
    again = import_tensors(entries, exported)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], state[key]) for key in state)


@pytest.mark.parametrize("name", CASES)
def test_transformers_loads_what_we_export_and_agrees(name, tmp_path):
    write_folder(tmp_path, *CASES[name])
    hf, tensors = read_folder(tmp_path)
    config = find_family(hf["model_type"]).from_hf_config(hf)
    family = find_family_of(config)
    written = family.to_hf_config(config)
    assert family.from_hf_config(written) == config
    folder = tmp_path / "exported"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(written))
    exported = export_tensors(family.entries(config), import_tensors(family.entries(config), tensors))
    save_file(
        {key: value.contiguous() for key, value in exported.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    original = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    tokens = torch.arange(40).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(theirs.eval()(tokens).logits, original.eval()(tokens).logits)
