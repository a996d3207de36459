"""A configuration as Python source is that configuration when Python has run the source."""

from pathlib import Path

import pytest

from monograph.config.json_form import dump_json
from monograph.config.python_form import make_identifier, render_recipe
from monograph.recipes.catalog import load_recipe
from monograph.recipes.pretrained import render_run
from tests.config.toys import Color, RunConfig, StageConfig, TrainingConfig, WideModelConfig, triple
from tests.passes.planted import Scaling


def run_source(source, name):
    space = {}
    exec(compile(source, "recipe.py", "exec"), space)
    return space[name]()


CHANGES = {
    "a function": {"transform": triple},
    "an enum": {"color": Color.BLUE},
    "a path": {"folder": Path("a b/it's")},
    "numbers": {"lr": float("inf"), "limit": 2.5, "window": (1, 2), "sizes": [3], "nested": [[1], []]},
    "texts": {"name": 'quo"te\\n', "note": "é\n", "names": ("one",), "weights": {"a b": 0.5}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_source_of_every_kind_of_value_makes_the_same_configuration(change):
    config = RunConfig(
        model=WideModelConfig(dim=4), training=TrainingConfig(**CHANGES[change]), stages=[StageConfig(first=2)]
    )
    source = render_recipe("mine", config, doc="Mine.")
    assert dump_json(run_source(source, "mine")) == dump_json(config)


def test_a_run_whose_attention_or_passes_are_functions_of_ones_own_is_printed_as_a_recipe():
    config = load_recipe("llama3_debugmodel")
    attention = config.model.attention.replace(kernel="flex", mask_mod=triple)
    config = config.replace(
        model=config.model.replace(attention=attention), passes=config.passes.replace(extra=(Scaling,))
    )
    assert dump_json(run_source(render_run("my/tiny", config), "tiny")) == dump_json(config)


@pytest.mark.parametrize("folder", ['a"b', "a\\new", '"""', "triple", "ends with \\"])
def test_the_name_of_a_folder_cannot_spoil_the_source(folder):
    config = RunConfig(model=WideModelConfig(dim=4), training=TrainingConfig(transform=triple))
    name = make_identifier(folder)
    source = render_recipe(name, config, doc=f"Train on from the model in {folder}.")
    assert dump_json(run_source(source, name)) == dump_json(config)
    space = {}
    exec(source, space)
    assert space[name].__doc__ == f"Train on from the model in {folder}."
