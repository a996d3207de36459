"""A component owns its Config, and the Config builds, checks and copies itself."""

from dataclasses import dataclass

import pytest

from monograph.config.configurable import Configurable, check_config, walk_configs
from monograph.errors import ConfigError
from tests.config.toys import Run, RunConfig, StageConfig, TrainingConfig, WideModelConfig, make_run


def test_a_config_builds_the_component_it_names():
    run = make_run().build(speed=3)
    assert type(run) is Run and run.speed == 3 and run.config == make_run()


def test_a_nested_config_builds_the_class_around_it():
    class Clock(Configurable):
        @dataclass(kw_only=True, slots=True)
        class Config(Configurable.Config):
            tick: float = 1.0

        def __init__(self, config: Config) -> None:
            self.tick = config.tick

    assert Clock.Config(tick=2.0).build().tick == 2.0


def test_a_component_refuses_a_config_that_is_not_keyword_only_and_slotted():
    with pytest.raises(TypeError, match="kw_only=True, slots=True"):

        class Loose(Configurable):
            @dataclass
            class Config(Configurable.Config):
                tick: float = 1.0


def test_a_typo_in_a_recipe_is_an_error_at_once():
    with pytest.raises(AttributeError):
        make_run().training.stepz = 5
    with pytest.raises(TypeError):
        TrainingConfig(stepz=5)


def test_settings_without_a_component_cannot_be_built():
    with pytest.raises(TypeError, match="no component"):
        StageConfig().build()


def test_configs_in_a_list_are_sections_of_their_own():
    config = make_run(stages=[StageConfig(), StageConfig(first=3)])
    assert [path for path, _ in walk_configs(config)] == ["", "model", "model.rope", "training", "stages.0", "stages.1"]


def test_an_inconsistent_section_is_reported_with_its_path():
    config = RunConfig(model=WideModelConfig(dim=63))
    with pytest.raises(ConfigError, match=r"^model: dim is 63") as caught:
        check_config(config)
    assert caught.value.do == "--model.dim 64"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("steps", "100", "a whole number"),
        ("steps", True, "a whole number"),
        ("steps", 1.0, "a whole number"),
        ("lr", "fast", "a number"),
        ("lr", float("nan"), "nan is not finite"),
        ("lr", float("inf"), "inf is not finite"),
        ("lr", 10**400, "64 bits"),
        ("limit", float("-inf"), "-inf is not finite"),
        ("weights", {"a": float("nan")}, "nan is not finite"),
        ("steps", 1 << 63, "64 bits"),
        ("decay", "square", "one of: cosine, linear"),
        ("sizes", [1, "2"], "a list of whole numbers"),
        ("sizes", (1, 2), "a list of whole numbers"),
        ("window", (1, 2, 3), "2 values"),
        ("weights", {"a": "b"}, "pairs of texts and numbers"),
        ("transform", 3, "a function"),
        ("name", None, "text"),
    ],
)
def test_a_recipe_that_sets_the_wrong_type_is_refused(field, value, words):
    config = make_run()
    setattr(config.training, field, value)
    with pytest.raises(ConfigError, match=f"training.{field} is ") as caught:
        check_config(config)
    assert words in caught.value.why


def test_a_whole_number_may_stand_for_a_number():
    config = make_run()
    config.training.lr, config.training.limit, config.training.weights = 1, 2, {"a": 3}
    check_config(config)
