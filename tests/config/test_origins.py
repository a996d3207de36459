"""Each value is traced to a default, the recipe or a flag."""

from monograph.config.leaves import find_leaves
from monograph.config.origins import find_origins
from monograph.config.overrides import apply_overrides, split_flags
from tests.config.toys import ModelConfig, RopeConfig, RunConfig, StageConfig, make_run


def test_every_leaf_and_every_class_chosen_by_a_recipe_has_an_origin():
    config = make_run(stages=[StageConfig()])
    assert set(find_origins(config)) == {leaf.path for leaf in find_leaves(config)} | {"model"}


def test_what_a_recipe_sets_is_the_recipes_and_the_rest_is_default():
    origins = find_origins(make_run())
    assert origins["model.dim"] == origins["model.layers"] == "recipe"
    assert origins["model.experts"] == origins["training.steps"] == "default"


def test_a_flag_is_a_flag_even_when_it_repeats_the_default():
    flags = split_flags(["--training.steps", "100"])
    origins = find_origins(apply_overrides(make_run(), flags), [flag.path for flag in flags])
    assert origins["training.steps"] == "flag" and origins["training.lr"] == "default"


def test_a_default_that_the_outer_class_chooses_is_a_default():
    origins = find_origins(make_run())
    assert origins["model.rope.max_seq_len"] == "default"


def test_a_nested_section_changed_by_the_recipe_is_the_recipes():
    origins = find_origins(RunConfig(model=ModelConfig(dim=2, rope=RopeConfig(max_seq_len=7))))
    assert origins["model.rope.max_seq_len"] == "recipe" and origins["model.rope.factors"] == "default"
