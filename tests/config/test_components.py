"""Sections by class: any nested Config can be replaced by a subclass that a flag names."""

import shlex

import pytest

from monograph.config.components import find_known
from monograph.config.diff import find_differences
from monograph.config.json_form import dump_json, parse_json
from monograph.config.origins import find_origins
from monograph.config.overrides import apply_overrides, split_flags
from monograph.config.text import format_config
from monograph.errors import ConfigError
from tests.config.component_toys import Deep, LateStageConfig, NestedModelConfig
from tests.config.toys import ModelConfig, StageConfig, WideModelConfig, make_run

TOYS = "tests.config.component_toys"
DEEP = f"--model {TOYS}:Deep.Config"


def apply(line, **changes):
    return apply_overrides(make_run(**changes), split_flags(shlex.split(line)))


def complain(line, **changes):
    with pytest.raises(ConfigError) as error:
        apply(line, **changes)
    return error.value


def test_a_class_starts_from_its_defaults_and_keeps_what_has_none():
    """The recipe has dim 64 and 4 layers: dim has no default, layers has."""
    model = apply(f"{DEEP} --model.depth 3").model
    assert type(model) is Deep.Config
    assert (model.dim, model.layers, model.depth) == (64, 9, 3)


def test_flags_for_its_fields_may_come_before_the_class():
    line = f"--model.depth 3 --model.layers 5 --model.rope.max_seq_len 128 {DEEP}"
    model = apply(line).model
    assert (model.depth, model.layers, model.rope.max_seq_len) == (3, 5, 128)


@pytest.mark.parametrize(
    "word",
    [f"{TOYS}:Deep.Config", f"{TOYS}:Deep"],
)
def test_a_component_stands_for_its_config(word):
    assert type(apply(f"--model {word} --model.depth 3").model) is Deep.Config


def test_a_loaded_class_is_known_by_its_name():
    assert type(apply("--model WideModelConfig").model) is WideModelConfig
    assert find_known((StageConfig,)) == {"StageConfig": StageConfig, "LateStageConfig": LateStageConfig}


def test_a_section_that_is_none_gets_a_class():
    run = apply(f"--validator.last 3 --validator {TOYS}:LateStageConfig --validator.names a b")
    assert run.validator == LateStageConfig(last=3, names=["a", "b"])
    assert apply("--validator None", validator=StageConfig()).validator is None


def test_an_entry_of_a_list_is_replaced_alone():
    run = apply(f"--stages.1 {TOYS}:LateStageConfig --stages.1.last 3", stages=[StageConfig(first=1), StageConfig()])
    assert run.stages == [StageConfig(first=1), LateStageConfig(last=3)]


def test_a_required_section_inside_a_class_is_chosen_too():
    line = f"--model {TOYS}:NestedModelConfig --model.stage {TOYS}:LateStageConfig --model.stage.last 2"
    model = apply(line).model
    assert model == NestedModelConfig(dim=64, stage=LateStageConfig(last=2))


def test_a_field_of_the_same_name_and_another_type_is_not_kept():
    error = complain(f"--model {TOYS}:OtherDimConfig")
    assert error.what == "--model.dim is missing" and "OtherDimConfig" in error.why


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"--model {TOYS}:Unrelated", ["derived from tests.config.toys:ModelConfig", "Unrelated.Config"]),
        (f"--model {TOYS}:Plain", ["derived from tests.config.toys:ModelConfig", "without a Config class"]),
        ("--model json:dumps", ["without a Config class", "known by name"]),
        ("--model WideModelConfg", ["did you mean --model WideModelConfig?"]),
        (f"--model {TOYS}:Dep", [f"did you mean {TOYS}:Deep?"]),
        ("--model unheard_of_package.model:Config", ["No module named 'unheard_of_package'"]),
        (f"{DEEP}", ["--model.depth is missing", "--model.depth VALUE"]),
        (f"{DEEP} --model.dept 3", ["there is no field model.dept", "did you mean --model.depth"]),
        (f"{DEEP} --model.depth three", ["model.depth takes a whole number"]),
        (f"{DEEP} --model.depth 3 --model.experts 2", ["there is no field model.experts"]),
        (f"{DEEP} --model.depth 3 {DEEP}", ["given twice"]),
        ("--validator 5", ["derived from tests.config.toys:StageConfig"]),
        ("--training 5", ["a section, not a value", "--training.steps", "package.module:Class"]),
    ],
)
def test_a_wrong_class_is_answered_with_the_base_and_the_nearest_name(line, words):
    text = str(complain(line))
    assert [word for word in words if word not in text] == [], text


def test_a_base_of_components_cannot_be_chosen_itself(monkeypatch):
    monkeypatch.setattr(ModelConfig, "is_base", True)
    error = complain("--model tests.config.toys:ModelConfig")
    assert "only says what they have in common" in error.why
    assert type(apply("--model WideModelConfig").model) is WideModelConfig, "not inherited"


def test_text_origins_json_and_differences_name_the_class():
    run, flags = apply(f"{DEEP} --model.depth 3"), ["model", "model.depth"]
    assert f"model = {TOYS}:Deep.Config\nmodel.dim = 64\n" in format_config(run)
    origins = find_origins(run, flags)
    assert [origins[f"model{name}"] for name in ("", ".depth", ".dim", ".layers")] == [
        "flag",
        "flag",
        "recipe",
        "default",
    ]
    assert parse_json(dump_json(run)) == run and type(parse_json(dump_json(run)).model) is Deep.Config
    assert "model.$class" in [each.path for each in find_differences(make_run(), run)]
