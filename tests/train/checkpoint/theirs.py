"""Small random models of transformers, saved as transformers saves them."""

from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

SHARED = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
}
CASES = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "qwen3 moe": ("Qwen3Moe", {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}),
    "deepseek": ("DeepseekV3", DEEPSEEK),
}


def write_theirs(folder: Path, case: str, *, dtype=torch.float32, shard_size: str = "5GB") -> torch.nn.Module:
    family, overrides = CASES[case]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SHARED, **overrides})
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(dtype).eval()
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def read_ours(checkpoint: Path) -> dict[str, torch.Tensor]:
    return {name.removeprefix("model/"): tensor for name, tensor in read_all(checkpoint).items()}


def same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and left[name].equal(right[name]) for name in left
    )


def replace(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    save_file(tensors, folder / "model.safetensors")
