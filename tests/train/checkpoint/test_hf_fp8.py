"""Folders with fp8 weights are imported with their scales, or refused by tensor name before anything is written."""

import json
import os

import pytest
import torch

from monograph.errors import CheckpointError, ConfigError
from monograph.train.checkpoint.hf_import import import_hf
from tests.train.checkpoint.theirs import read_all, read_ours, replace, write_theirs

NAME = "model.layers.0.self_attn.o_proj.weight"
EXPERT = "model.layers.1.mlp.experts.2.up_proj.weight"
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}


def write_fp8(folder, *, quantization=FP8, changes=None, name=NAME):
    """A small DeepSeek folder with one weight in fp8, under the scale 0.5; returns the fp8 weight."""
    write_theirs(folder, "deepseek", dtype=torch.bfloat16)
    tensors = read_all(folder)
    weight = tensors[name].float().to(torch.float8_e4m3fn)
    tensors |= {name: weight, name + "_scale_inv": torch.full((1, 1), 0.5), **(changes or {})}
    replace(folder, {key: tensor for key, tensor in tensors.items() if tensor is not None})
    config = json.loads((folder / "config.json").read_text())
    settings = {} if quantization is None else {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config | settings))
    return weight


def test_fp8_weights_with_block_scales_are_imported_in_bf16(tmp_path):
    weight = write_fp8(tmp_path / "theirs")
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    imported = read_ours(tmp_path / "ours")["layers.0.attention.wo.weight"]
    assert imported.dtype == torch.bfloat16 and imported.equal((weight.float() * 0.5).bfloat16())


def test_an_expert_in_fp8_takes_its_scale_in_the_stack(tmp_path):
    weight = write_fp8(tmp_path / "theirs", name=EXPERT)
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    assert read_ours(tmp_path / "ours")["layers.1.moe.experts.w3"][2].equal((weight.float() * 0.5).bfloat16())


REFUSED = {
    "no scale": ({"changes": {NAME + "_scale_inv": None}}, f"{NAME} is stored in float8_e4m3fn without"),
    "no quantization_config": ({"quantization": None}, f"{NAME} is stored in fp8, but config.json has no"),
    "an empty quantization_config": ({"quantization": {}}, f"{NAME} is stored in fp8, but config.json has no"),
    "too many scales": ({"changes": {NAME + "_scale_inv": torch.ones(2, 1)}}, f"{NAME}_scale_inv has shape"),
    "flat scales": ({"changes": {NAME + "_scale_inv": torch.ones(1)}}, f"{NAME}_scale_inv has shape"),
    "nan": ({"changes": {NAME + "_scale_inv": torch.full((1, 1), torch.nan)}}, f"{NAME}_scale_inv holds nan"),
    "wrong scales": (
        {"changes": {NAME + "_scale_inv": torch.ones(1, 1).int()}},
        f"{NAME}_scale_inv is stored in int32",
    ),
    "not converted": (
        {"quantization": {**FP8, "modules_to_not_convert": ["o_proj"]}},
        f"{NAME} is stored in fp8, but modules_to_not_convert",
    ),
    "a scale without fp8": (
        {"changes": {"model.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(1, 1)}},
        "model.layers.0.mlp.up_proj.weight_scale_inv scales",
    ),
    "a scale of nothing": ({"changes": {"model.layers.0.x.weight_scale_inv": torch.ones(1, 1)}}, "not known"),
    "whole numbers": (
        {"changes": {"model.norm.weight": torch.ones(32).char()}},
        "model.norm.weight is stored in int8",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_with_other_fp8_weights_is_refused_by_tensor_name(case, tmp_path):
    options, complaint = REFUSED[case]
    write_fp8(tmp_path / "theirs", **options)
    with pytest.raises(CheckpointError, match=complaint):
        import_hf(tmp_path / "theirs", tmp_path / "ours")
    assert os.listdir(tmp_path) == ["theirs"]


def test_another_quantization_is_refused_by_its_method(tmp_path):
    write_fp8(tmp_path / "theirs", quantization={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ConfigError, match=r"quantization_config\.quant_method.*gptq"):
        import_hf(tmp_path / "theirs", tmp_path / "ours")
