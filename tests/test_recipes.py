"""Recipes: every published size has one, each is complete and consistent, and its full text is on record.

After a change that is meant, write the records anew with `UPDATE_GOLDENS=1 pytest tests/test_recipes.py` and review the
difference like any other.
"""

import os
import shlex
import sys
from pathlib import Path

import pytest
import torch

from monograph.config.configurable import check_config
from monograph.config.json_form import dump_json, parse_json
from monograph.config.leaves import find_leaves
from monograph.config.overrides import apply_overrides, split_flags
from monograph.config.text import format_config, format_words
from monograph.errors import ConfigError
from monograph.models.llama4.attention import Temperature
from monograph.models.rope import Rope
from monograph.recipes.catalog import find_recipe, find_recipes, load_recipe
from monograph.recipes.size import Size, count_parameters

GOLDENS = Path(__file__).parent / "goldens" / "recipes"
SIZES = {
    "deepseek_v3": "debugmodel debugmodel_flex 16b 236b 671b",
    "gemma2": "debugmodel 2b 9b 27b",
    "gemma3": "debugmodel 1b",
    "gpt_oss": "debugmodel 20b 120b",
    "llama3": "debugmodel debugmodel_flex 1b 3b 8b 70b 405b",
    "llama4": "debugmodel scout maverick",
    "mistral": "debugmodel 7b nemo_12b",
    "qwen2_5": "debugmodel 0_5b 1_5b 3b 7b 14b 32b 72b",
    "qwen3": "debugmodel 0_6b 1_7b 4b 8b 14b 32b debugmodel_moe 30b_a3b 235b_a22b",
}
BENCH = ["llama3_bench_1b", "deepseek_v3_bench_moe"]
NAMES = [*(f"{family}_{size}" for family, sizes in SIZES.items() for size in sizes.split()), *BENCH]
DEBUG = [name for name in NAMES if "debugmodel" in name]


def test_there_is_one_recipe_for_every_size_and_one_for_each_measured_model():
    assert list(find_recipes()) == NAMES


def test_the_measured_models_have_the_parameters_their_anchors_were_measured_with():
    dense, experts = (count_parameters(load_recipe(name).model) for name in BENCH)
    assert round(dense.total / 1e5) == 12358 and round(experts.total / 1e5) == 34247
    assert all(
        load_recipe(name).training.local_batch_size * load_recipe(name).training.seq_len == 16384 for name in BENCH
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_complete_and_consistent(name):
    config = load_recipe(name)
    check_config(config)
    assert config.job.dump_folder == f"outputs/{name}"
    assert find_recipe(name).__doc__.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_a_recipes_full_text_is_the_recorded_one(name):
    text, golden = format_config(load_recipe(name)), GOLDENS / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "changed on purpose? UPDATE_GOLDENS=1 records it"


@pytest.mark.parametrize("name", NAMES)
def test_a_run_has_positions_for_its_own_length_only(name):
    """Llama 4 Scout's config.json allows ten million of them: 5 GB of tables."""
    config = load_recipe(name)
    with torch.device("meta"):
        model = config.plan_model().build()
    tables = [table for part in model.modules() if isinstance(part, Rope | Temperature) for table in part.buffers()]
    assert tables and all(table.shape[0] == config.training.seq_len for table in tables)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_survives_json(name):
    config = load_recipe(name)
    assert parse_json(dump_json(config)) == config


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_makes_a_fresh_config_each_time(name):
    first, untouched = load_recipe(name), load_recipe(name)
    first.training.steps, first.model.rope.max_seq_len, first.model.attention.n_heads = -1, -1, -1
    assert load_recipe(name) == untouched


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "deepseek" in name else pytest.mark.long) for name in DEBUG]
)
def test_every_field_of_a_recipe_can_be_typed_as_a_flag(name):
    config = load_recipe(name)
    for leaf in find_leaves(config):
        flag = shlex.split(f"--{leaf.path}={words}") if (words := format_words(leaf.value)) else [f"--{leaf.path}", ""]
        if isinstance(leaf.value, tuple):
            flag = [f"--{leaf.path}", *(leaf.value or ["[]"])]
        assert apply_overrides(config, split_flags(flag)) == config, leaf.path


@pytest.mark.parametrize("name", DEBUG)
def test_debug_recipes_are_small_and_in_full_precision(name):
    config = load_recipe(name)
    training = config.training
    assert (training.dtype, training.compute_dtype) == ("float32", "float32")
    assert (training.steps, training.seq_len, training.local_batch_size) == (100, 256, 4)
    assert config.checkpoint.save_last and config.lr_scheduler.warmup_steps <= 20
    assert count_parameters(config.model).total < 20e6


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DEBUG])
def test_large_recipes_compute_in_bf16_over_fp32_weights(name):
    training = load_recipe(name).training
    assert (training.dtype, training.compute_dtype) == ("float32", "bfloat16")
    assert training.seq_len in (4096, 8192)


@pytest.mark.parametrize("name", NAMES)
def test_the_listed_size_is_the_built_models_size(name):
    config = load_recipe(name)
    with torch.device("meta"):
        model = config.model.build()
    assert count_parameters(config.model).total == sum(parameter.numel() for parameter in model.parameters())


def test_sizes_are_written_as_people_say_them():
    assert str(Size(8_030_261_248, 8_030_261_248)) == "8.03B"
    assert str(Size(10_800_000, 3_700_000)) == "10.8M, 3.7M active"


CUSTOM_OPS = """
from monograph.recipes.llama3 import llama3_debugmodel

def mine():
    config = llama3_debugmodel()
    config.training.steps = 7
    return config

def wrong():
    config = llama3_debugmodel()
    config.training.stepz = 7
    return config

def nothing():
    pass

number = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A user's file in the current folder."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CUSTOM_OPS)
    (tmp_path / f"{name}_broken.py").write_text("\nimport no_such_package\n")
    (tmp_path / f"{name}_unfinished.py").write_text("\n\ndef f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_a_users_own_recipe_is_found_in_the_current_folder(own_module):
    assert load_recipe(f"{own_module}:mine").training.steps == 7


@pytest.mark.parametrize(
    ("ending", "complaints"),
    [
        (":min", ["defines no min", ":mine?"]),
        (":wrong", ["AttributeError", "stepz", ".py:11"]),
        (":nothing", ["returned NoneType"]),
        (":number", ["a value of type int"]),
        ("_broken:mine", ["No module named 'no_such_package'", "_broken.py:2"]),
        ("_unfinished:mine", ["SyntaxError", "_unfinished.py:3"]),
        ("_absent:mine", ["No module named"]),
        (".py:mine", ["names a file", ":mine?"]),
        (".mine", [":mine'?"]),
        (".py", ["is a file", ":FUNCTION"]),
        ("/missing/config.toml", ["no file or folder of that name", "Python function"]),
    ],
)
def test_what_is_wrong_with_a_users_recipe_is_said_with_its_place(own_module, ending, complaints):
    with pytest.raises(ConfigError) as caught:
        load_recipe(own_module + ending)
    for complaint in complaints:
        assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("Qwen/Qwen2.5-0.5B", "qwen2_5_0_5b"), ("meta-llama/Llama-3.2-1B", "llama3_1b"), ("a/gpt2", "")],
)
def test_a_model_of_the_hub_is_answered_with_the_command_that_trains_it_on(name, nearest):
    with pytest.raises(ConfigError) as caught:
        load_recipe(name)
    shown = str(caught.value)
    assert f"monograph train --model.from {name} --dataloader.dataset" in shown
    assert f"hf download {name} --local-dir FOLDER" in shown
    assert shown.endswith(f"monograph train {nearest}") if nearest else "new weights" not in shown


def test_a_folder_without_a_model_is_called_one(tmp_path):
    with pytest.raises(ConfigError, match=f"'{tmp_path}' is a file or folder, not a recipe"):
        load_recipe(str(tmp_path))
