"""fp8 weights with block scales become the weights they stand for; everything else about them is refused by name."""

import pytest
import torch

from monograph.errors import CheckpointError, ConfigError
from monograph.models.hf_quantization import check_quantization, is_listed
from monograph.models.hf_reader import HfReader
from monograph.models.hf_tensors import read_theirs

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_weights_with_block_scales_come_back_as_numbers(dtype):
    torch.manual_seed(0)
    stored = torch.randn(200, 300).to(torch.float8_e4m3fn)
    scales = (torch.rand(2, 3) + 0.5).to(dtype)
    expected = torch.empty(200, 300)
    for row in range(200):
        for block in range(3):
            columns = slice(block * 128, (block + 1) * 128)
            expected[row, columns] = stored[row, columns].float() * scales[row // 128, block].float()
    found = read_theirs({"w.weight": stored, "w.weight_scale_inv": scales}, "w.weight")
    assert torch.equal(found, expected.to(torch.bfloat16))


def with_value(value: float) -> torch.Tensor:
    scales = torch.ones(2, 3)
    scales[1, 2] = value
    return scales


BAD = {
    "none": (None, "without w.weight_scale_inv"),
    "too few": (torch.ones(1, 3), r"w.weight_scale_inv has shape \[1, 3\] instead of \[2, 3\]"),
    "too many": (torch.ones(2, 4), r"w.weight_scale_inv has shape \[2, 4\]"),
    "one for each element": (torch.ones(200, 300), r"w.weight_scale_inv has shape \[200, 300\]"),
    "flat": (torch.ones(6), r"w.weight_scale_inv has shape \[6\]"),
    "one": (torch.ones(()), r"w.weight_scale_inv has shape \[\]"),
    "empty": (torch.ones(0, 3), r"w.weight_scale_inv has shape \[0, 3\]"),
    "whole numbers": (torch.ones(2, 3, dtype=torch.int32), "w.weight_scale_inv is stored in int32"),
    "fp8 scales": (torch.ones(2, 3).to(torch.float8_e4m3fn), "w.weight_scale_inv is stored in float8_e4m3fn"),
    "nan": (with_value(float("nan")), "w.weight_scale_inv holds nan"),
    "infinite": (with_value(float("inf")), "w.weight_scale_inv holds inf"),
    "zero": (with_value(0.0), "w.weight_scale_inv holds 0.0"),
    "negative": (with_value(-2.0), "w.weight_scale_inv holds -2.0"),
}


@pytest.mark.parametrize("name", BAD)
def test_scales_that_are_missing_or_cannot_be_right_are_refused_by_name(name):
    scales, complaint = BAD[name]
    source = {"w.weight": torch.ones(200, 300).to(torch.float8_e4m3fn)}
    with pytest.raises(CheckpointError, match=complaint):
        read_theirs(source if scales is None else {**source, "w.weight_scale_inv": scales}, "w.weight")


@pytest.mark.parametrize(
    ("weight", "scales", "complaint"),
    [
        (torch.ones(200, 300).bfloat16(), torch.ones(2, 3), "scales w.weight, which is stored in bfloat16"),
        (torch.ones(200, 300).to(torch.float8_e5m2), torch.ones(2, 3), "which is stored in float8_e5m2"),
        (torch.ones(200, 300).to(torch.float8_e5m2), None, "w.weight is stored in float8_e5m2"),
        (torch.ones(200, 300, dtype=torch.int8), None, "w.weight is stored in int8"),
        (torch.ones(200).to(torch.float8_e4m3fn), torch.ones(2), "has 1 dim, not 2"),
    ],
)
def test_weights_of_other_types_are_refused_by_name(weight, scales, complaint):
    source = {"w.weight": weight} | ({} if scales is None else {"w.weight_scale_inv": scales})
    with pytest.raises(CheckpointError, match=complaint):
        read_theirs(source, "w.weight")


@pytest.mark.parametrize("more", [{}, {"modules_to_not_convert": ["lm_head"]}, {"scale_fmt": "ue8m0"}])
def test_the_published_fp8_format_is_accepted(more):
    check_quantization(HfReader({**FP8, **more}))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        *(({"quant_method": name}, name) for name in ("awq", "gptq", "bitsandbytes", "mxfp4", "compressed-tensors")),
        ({"quant_method": None}, "quant_method"),
        ({"quant_method": ...}, "quant_method"),
        ({"weight_block_size": ...}, "weight_block_size"),
        *(({"weight_block_size": size}, "weight_block_size") for size in (None, 128, [], [128], [0, 0], [128, 64])),
        *(({"weight_block_size": size}, "weight_block_size") for size in ([128, 128, 128], [-128, -128], ["128"] * 2)),
        ({"activation_scheme": "static"}, "activation_scheme"),
        ({"fmt": "e5m2"}, "fmt"),
        ({"expert_dtype": "fp4"}, "expert_dtype"),
        ({"modules_to_convert": ["model.embed_tokens"]}, "modules_to_convert"),
        ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ({"modules_to_not_convert": [3]}, "modules_to_not_convert"),
        ({"bits": 4}, "bits"),
    ],
)
def test_any_other_quantization_is_refused_by_name(change, word):
    values = {key: value for key, value in {**FP8, **change}.items() if value is not ...}
    with pytest.raises(ConfigError, match=word):
        check_quantization(HfReader(values, path="quantization_config"))


def test_a_module_is_listed_by_its_path_or_a_part_of_it():
    name = "model.layers.3.mlp.gate.weight"
    assert all(is_listed(name, [module]) for module in ("model.layers.3", "mlp.gate", "gate", "model"))
    assert not any(is_listed(name, [module]) for module in ("layers.30", "gate_proj", "ate", "lm_head"))
