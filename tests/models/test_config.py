"""Values that cannot work are refused when the configuration is checked, with words that name them."""

import pytest

from monograph.config.configurable import check_config
from monograph.errors import ConfigError
from monograph.models.config import (
    AttentionConfig,
    LatentAttentionConfig,
    MoeConfig,
    RopeConfig,
    RouterConfig,
)
from tests.kit.small import small_deepseek_v3, small_llama3, small_qwen3

LATENT = {"n_heads": 2, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
WRONG = {
    "heads against dim": (lambda: small_llama3(dim=34), "n_heads"),
    "odd head": (lambda: small_llama3(dim=36, attention=AttentionConfig(n_heads=4, n_kv_heads=2)), "n_heads"),
    "odd head_dim": (lambda: small_llama3(attention=AttentionConfig(n_heads=4, n_kv_heads=2, head_dim=7)), "head_dim"),
    "kv heads": (lambda: small_qwen3(attention=AttentionConfig(n_heads=4, n_kv_heads=3)), "n_kv_heads"),
    "no layers": (lambda: small_llama3(n_layers=0), "n_layers"),
    "no vocabulary": (lambda: small_llama3(vocab_size=0), "vocab_size"),
    "rope length": (lambda: small_llama3(rope=RopeConfig(max_seq_len=0)), "max_seq_len"),
    "rope factor": (lambda: small_llama3(rope=RopeConfig(factor=0.5)), "factor"),
    "llama3 rope": (lambda: small_llama3(rope=RopeConfig(scaling="llama3", low_freq_factor=5.0)), "low_freq_factor"),
    "yarn rope": (lambda: small_llama3(rope=RopeConfig(scaling="yarn", beta_slow=40.0)), "beta_slow"),
    "negative documents": (lambda: small_llama3(mask="document", max_documents=-1), "max_documents"),
    "odd rotated channels": (
        lambda: small_deepseek_v3(attention=LatentAttentionConfig(**{**LATENT, "qk_rope_head_dim": 7})),
        "qk_rope_head_dim",
    ),
    "too many choices": (
        lambda: small_qwen3(moe=MoeConfig(n_experts=4, hidden_dim=8, router=RouterConfig(top_k=5))),
        "top_k",
    ),
    "choices against groups": (
        lambda: small_qwen3(moe=MoeConfig(n_experts=8, hidden_dim=8, router=RouterConfig(top_k=5, n_groups=2))),
        "top_k",
    ),
    "uneven groups": (
        lambda: small_qwen3(moe=MoeConfig(n_experts=6, hidden_dim=8, router=RouterConfig(n_groups=4, top_groups=2))),
        "n_groups",
    ),
    "lonely groups": (
        lambda: small_qwen3(moe=MoeConfig(n_experts=4, hidden_dim=8, router=RouterConfig(n_groups=4, top_groups=2))),
        "n_groups",
    ),
    "more open groups than groups": (
        lambda: small_qwen3(moe=MoeConfig(n_experts=4, hidden_dim=8, router=RouterConfig(top_groups=2))),
        "top_groups",
    ),
    "dense layers": (lambda: small_deepseek_v3(n_dense_layers=4), "n_dense_layers"),
    "no experts": (lambda: small_deepseek_v3(moe=MoeConfig()), "n_experts"),
}


@pytest.mark.parametrize("name", WRONG)
def test_values_that_cannot_work_are_refused_by_name(name):
    make, field = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        check_config(make())
    assert field in str(caught.value)


@pytest.mark.parametrize("make", [small_llama3, small_qwen3, small_deepseek_v3])
def test_values_that_can_work_are_accepted(make):
    check_config(make())


def test_only_models_with_expert_biases_have_an_update_rate():
    assert small_llama3().find_bias_update_rate() == 0
    assert small_qwen3().find_bias_update_rate() == 0
    assert small_deepseek_v3().find_bias_update_rate() == 0.01
    assert small_deepseek_v3(n_dense_layers=3).find_bias_update_rate() == 0
