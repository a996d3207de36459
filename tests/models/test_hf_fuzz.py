"""A few random config.json files and exports here; many with `make test-long`, a thousand with `make test-fuzz`."""

import json
import random
from pathlib import Path

import pytest
import torch

from monograph.models.hf_families import find_family
from monograph.models.hf_reader import NO_EFFECT
from tests.models.hf_draw import FAMILIES, Drawn, draw, draw_valid
from tests.models.hf_export_fuzz import draw_ours
from tests.models.hf_fuzz import (
    MATCHED,
    REFUSED,
    ROUNDING,
    Mismatch,
    build_theirs,
    check_config_json,
    check_export,
    check_import,
    compute_theirs,
    judge,
)

FEW, MANY = range(5), range(1000, 1060)
PLAUSIBLE = {
    "architectures": ["Other"],
    "custom_pipelines": ["Other"],
    **dict.fromkeys(("dtype", "torch_dtype"), "float32"),
    **dict.fromkeys(("attn_implementation", "_attn_implementation"), "sdpa"),
    **dict.fromkeys(("return_dict", "is_decoder", "output_hidden_states"), True),
    **dict.fromkeys(("use_cache", "output_attentions", "torchscript", "gradient_checkpointing"), False),
    "experts_implementation": "eager",
    "id2label": {"0": "a", "1": "b", "2": "c"},
    "label2id": {"a": 0, "b": 1, "c": 2},
    "problem_type": "regression",
    "transformers_version": "4.0.0",
    "auto_map": {},
}
"""Values that transformers accepts; every other key takes 3."""


@pytest.mark.parametrize("family", range(len(FAMILIES)), ids=list(FAMILIES))
def test_a_random_config_gives_transformers_logits_or_is_refused_by_name(family):
    for index in FEW:
        check_import(len(FAMILIES) * index + family)


@pytest.mark.long
@pytest.mark.parametrize("family", range(len(FAMILIES)), ids=list(FAMILIES))
def test_many_random_configs_give_transformers_logits_or_are_refused_by_name(family):
    outcomes = [check_import(len(FAMILIES) * index + family)[1] for index in MANY]
    assert outcomes.count(MATCHED) > len(outcomes) / 4 and outcomes.count(REFUSED) > len(outcomes) / 4
    assert outcomes.count(ROUNDING) < len(outcomes) / 20


@pytest.mark.parametrize("seed", range(4))
def test_transformers_computes_our_logits_from_a_random_export_or_it_is_refused(seed):
    check_export(seed)


@pytest.mark.long
def test_transformers_computes_our_logits_from_many_random_exports():
    outcomes = [check_export(seed)[1] for seed in MANY]
    assert outcomes.count(MATCHED) > len(outcomes) / 2 and REFUSED in outcomes


def test_a_seed_always_stands_for_the_same_config():
    assert [draw(seed).hf for seed in range(9)] == [draw(seed).hf for seed in range(9)]
    assert draw_ours(3) == draw_ours(3)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_keys_without_effect_do_not_change_what_transformers_computes(model_type, tmp_path):
    plain = make_valid(model_type)
    odd = {**plain, **{key: PLAUSIBLE.get(key, 3) for key in NO_EFFECT}}
    config = find_family(model_type).from_hf_config(odd)
    assert config == find_family(model_type).from_hf_config(plain)
    logits = [compute_theirs(write_and_build(tmp_path / name, hf), config) for name, hf in (("a", plain), ("b", odd))]
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-6)


def make_valid(model_type: str) -> dict:
    return draw_valid(random.Random(1), model_type)


def write_and_build(folder: Path, hf: dict):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(hf))
    return build_theirs(str(folder))


def test_the_fuzz_notices_a_wrong_formula_and_a_refusal_that_names_nothing(tmp_path):
    hf = make_valid("deepseek_v3")
    config = find_family("deepseek_v3").from_hf_config(hf)
    theirs = write_and_build(tmp_path / "a", hf)
    expected = compute_theirs(theirs, config)
    assert judge(expected + 5e-6, theirs, config) == MATCHED
    with pytest.raises(Mismatch, match="differ"):
        judge(expected + 1e-4, theirs, config)
    with pytest.raises(Mismatch, match="without naming"):
        check_config_json(Drawn({**hf, "kv_lora_rank": 0}, ("v_head_dim",)))
