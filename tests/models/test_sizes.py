"""Every published size has exactly the published number of parameters."""

import importlib
import subprocess
import sys

import pytest
import torch

from monograph.config.configurable import check_config
from monograph.models.init import plan_init

PUBLISHED = {
    "gpt_oss_20b": 20_914_757_184,
    "gpt_oss_120b": 116_829_156_672,
    "llama4_scout": 107_769_861_120,  # and 871,932,416 in the parts that read pictures: 108,641,793,536
    "llama4_maverick": 400_711_848_960,
    "llama3_1b": 1_235_814_400,
    "llama3_3b": 3_212_749_824,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama3_405b": 405_853_388_800,
    "qwen2_5_0_5b": 494_032_768,
    "qwen2_5_1_5b": 1_543_714_304,
    "qwen2_5_3b": 3_085_938_688,
    "qwen2_5_7b": 7_615_616_512,
    "qwen2_5_14b": 14_770_033_664,
    "qwen2_5_32b": 32_763_876_352,
    "qwen2_5_72b": 72_706_203_648,
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    "gemma2_2b": 2_614_341_888,
    "gemma2_9b": 9_241_705_984,
    "gemma2_27b": 27_227_128_320,
    "gemma3_1b": 999_885_952,
    "mistral_7b": 7_241_732_096,
    "mistral_nemo_12b": 12_247_782_400,
    "deepseek_v3_16b": 15_706_484_224,
    "deepseek_v3_236b": 235_741_434_880,
    "deepseek_v3_671b": 671_026_404_352,
}
FAMILIES = ("gpt_oss", "llama4", "llama3", "qwen2_5", "qwen3", "deepseek_v3", "mistral", "gemma2", "gemma3")
DEBUG = (*(f"{family}_debugmodel" for family in FAMILIES), "qwen3_debugmodel_moe")


def find_size(name: str):
    family = next(family for family in FAMILIES if name.startswith(family + "_"))
    return getattr(importlib.import_module(f"monograph.models.{family}.sizes"), name)()


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_size_has_the_published_parameter_count(name):
    config = find_size(name)
    check_config(config)
    with torch.device("meta"):
        model = config.build()
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]
    assert plan_init(model).keys() == {key for key, _ in model.named_parameters()}


@pytest.mark.parametrize("name", DEBUG)
def test_a_debug_model_is_small_and_holds_the_byte_tokenizer(name):
    config = find_size(name)
    check_config(config)
    with torch.device("meta"):
        model = config.build()
    assert sum(parameter.numel() for parameter in model.parameters()) < 12_000_000
    assert config.dim == 256 and config.n_layers == 6 and config.vocab_size >= 260 and config.rope.max_seq_len == 2048


def test_the_deepseek_debug_model_has_every_feature_of_the_large_one():
    debug, large = find_size("deepseek_v3_debugmodel"), find_size("deepseek_v3_671b")
    assert (debug.moe.n_experts, debug.moe.router.top_k) == (8, 3)
    assert 0 < debug.n_dense_layers < debug.n_layers
    for config in (debug, large):
        router = config.moe.router
        assert router.expert_bias and router.score == "sigmoid" and router.norm and router.scale != 1
        assert 1 < router.n_groups > router.top_groups
        assert config.attention.q_lora_rank and config.moe.n_shared_experts
        assert config.rope.scaling == "yarn" and config.rope.mscale_all_dim


def test_configs_and_sizes_load_without_torch():
    modules = ", ".join(f"monograph.models.{family}.sizes" for family in FAMILIES)
    script = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
