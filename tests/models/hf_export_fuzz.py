"""Random models of ours: transformers computes our logits from what we export, or the export is refused by name.

Part of `tests.models.hf_fuzz`; a seed decides everything.
"""

import json
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import torch
import transformers
from safetensors.torch import save_file

from monograph.config.configurable import check_config
from monograph.config.leaves import Leaf, find_leaves, replace_leaf
from monograph.errors import ConfigError
from monograph.models.config import DecoderConfig, MoeConfig
from monograph.models.hf_families import find_family_of
from monograph.models.hf_tensors import export_tensors
from tests.kit.small import SMALL, build, small_gemma2, small_mistral, small_qwen3

KINDS = {**SMALL, "qwen3 dense": lambda: small_qwen3(moe=MoeConfig()), "mistral": small_mistral, "gemma2": small_gemma2}
FIXED = (
    *("kernels", "kernel", "backend", "force_balance", "chunk_tokens", "bias_update_rate", "init_std"),
    *("mask_mod", "score_mod", "dropout", "max_documents"),
)
"""Fields that do not change the logits of given weights, deal tokens out for measurements, or hold functions."""


def draw_ours(seed: int) -> tuple[DecoderConfig, tuple[str, ...]]:
    """A valid small model with some fields changed, and their paths."""
    pick = random.Random(seed)
    config: DecoderConfig = KINDS[list(KINDS)[seed % len(KINDS)]]()
    changed: list[str] = []
    for _ in range(pick.choice((1, 2, 2, 3, 4))):
        leaf = pick.choice([each for each in find_leaves(config) if each.name not in FIXED])
        attempt = replace_leaf(config, leaf.path, draw_field(pick, leaf))
        try:
            check_config(attempt)
        except ConfigError:
            continue
        config = attempt
        changed.append(leaf.path)
    return config, tuple(changed)


def draw_field(pick: random.Random, leaf: Leaf) -> Any:
    """Another value of the field's type, of about the same size."""
    if get_origin(leaf.annotation) is Literal:
        return pick.choice(get_args(leaf.annotation))
    if isinstance(leaf.value, bool):
        return not leaf.value
    if isinstance(leaf.value, tuple):  # layer by layer: enough for a model of three layers
        return pick.choice(((), ("full", "window", "full"), ("window", "window", "full")))
    if isinstance(leaf.value, int):
        return max(0, leaf.value + pick.choice((-8, -4, -2, -1, 1, 2, 4, 8)))
    value = leaf.value * pick.choice((0.1, 0.5, 1.5, 3.0, 10.0)) or pick.choice((0.5, 1.0))
    return value if pick.random() < 0.8 else max(1, round(value))


def fill(tensors: Mapping[str, torch.Tensor]) -> None:
    """Random weights, large enough that a wrong formula shows; biases lie around 0, norms around their start, other
    vectors around 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in tensors.items():
            drawn = torch.randn(tensor.shape, generator=generator)
            if tensor.dim() > 1:
                tensor.copy_(drawn * tensor.shape[-1] ** -0.5)
            else:
                start = tensor.mean() if "norm" in name else 1
                tensor.copy_(0.2 * drawn if name.endswith("bias") else start + 0.3 * drawn)


def export(config: DecoderConfig, tokens: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Our logits, and transformers' model from the exported folder; ConfigError when it is not exported."""
    family = find_family_of(config)
    written = family.to_hf_config(config)
    model = build(config).eval()
    fill(model.state_dict())
    tensors = export_tensors(family.entries(config), model.state_dict())
    with tempfile.TemporaryDirectory(prefix="hf-export-") as folder, torch.no_grad():
        (Path(folder) / "config.json").write_text(json.dumps(written))
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, Path(folder) / "model.safetensors", {"format": "pt"})
        theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
        )
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
        return model.predict(tokens, documents=torch.zeros_like(tokens)), theirs.eval()
