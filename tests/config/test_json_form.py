"""A configuration goes to JSON and back without loss, and reading one never runs foreign code."""

import copy
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monograph.config.configurable import Configurable
from monograph.config.json_form import dump_json, from_json, is_same, parse_json, to_json
from monograph.errors import ConfigError
from tests.config.toys import Color, ModelConfig, RunConfig, StageConfig, WideModelConfig, make_run, triple


@dataclass(kw_only=True, slots=True)
class AnythingConfig(Configurable.Config):
    value: Any = None


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


def make_full_run():
    """A run with every field away from its default."""
    config = make_run(validator=StageConfig(first=2), stages=[StageConfig(first=1)])
    training = config.training
    training.window, training.names, training.nested = (1, 2), ("a",), [[1], []]
    training.weights, training.limit, training.transform = {"a": 1e300}, -5e-324, triple
    training.folder, training.color, training.switches = Path("/x"), Color.BLUE, [True]
    training.note, training.deterministic = "ü\n'\"", True
    return config


def test_a_config_survives_json_with_all_its_types():
    config = make_full_run()
    again = parse_json(dump_json(config))
    assert again == config
    assert type(again.model) is WideModelConfig and type(again.training.window) is tuple
    assert again.training.transform is triple and type(again.training.folder) is type(Path())


@given(values)
def test_any_plain_value_survives_json(value):
    config = AnythingConfig(value=value)
    again = parse_json(dump_json(config))
    assert is_same(again, config) and repr(again.value) == repr(value)


def test_the_json_of_ordinary_values_is_ordinary_json():
    data = to_json(make_run())
    assert data["training"]["steps"] == 100 and data["model"]["rope"]["factors"] == [1.0, 4.0]
    assert data["$class"] == "tests.config.toys:RunConfig"
    assert "NaN" not in dump_json(AnythingConfig(value=math.nan))


def test_a_field_missing_from_the_file_takes_its_default():
    assert from_json({"$class": "tests.config.toys:StageConfig"}) == StageConfig()


@pytest.mark.parametrize("value", [lambda x: x, object(), b"raw"])
def test_what_cannot_be_named_cannot_be_kept(value):
    with pytest.raises(ConfigError):
        to_json(AnythingConfig(value=value))


def change(path, value):
    """The JSON of a run with one place replaced."""
    data = copy.deepcopy(to_json(make_full_run()))
    index = data
    for part in path[:-1]:
        index = index[part]
    index[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (["training", "steps"], "100", "training.steps"),
        (["training", "steps"], True, "training.steps"),
        (["training", "stepz"], 1, "training.stepz"),
        (["training", "decay"], "square", "training.decay"),
        (["training", "transform"], {"$function": "os:system"}, "os:system"),
        (["training", "transform"], {"$function": "subprocess:run"}, "subprocess:run"),
        (["training", "transform"], {"$function": "antigravity:fly"}, "antigravity:fly"),
        (["training", "transform"], {"$function": "monograph.config.docs:ast.parse"}, "ast.parse"),
        (["training", "transform"], {"$function": "monograph.no_such_file:run"}, "no_such_file"),
        (["training", "name"], {"$function": "tests.config.toys:triple"}, "training.name"),
        (["training", "lr"], {"$float": "1e3"}, "training.lr"),
        (["training", "lr"], {"$eval": "1+1"}, "training.lr"),
        (["training", "lr"], {"$float": "inf"}, "training.lr.*\n.*not finite"),
        (["training", "lr"], math.inf, "training.lr.*\n.*not finite"),
        (["training", "lr"], math.nan, "training.lr.*\n.*not finite"),
        (["training", "lr"], 10**400, "training.lr.*\n.*64 bits"),
        (["training", "limit"], {"$float": "-inf"}, "training.limit.*\n.*not finite"),
        (["training", "weights"], {"a": {"$float": "nan"}}, "training.weights.*\n.*not finite"),
        (["training", "steps"], 1 << 63, "training.steps.*\n.*64 bits"),
        (["training", "switches"], {"$set": [[1]]}, "unhashable"),
        (["training"], {"$class": "subprocess:Popen", "args": "ls"}, "subprocess:Popen"),
        (["training"], {"$class": "tests.config.toys:Run"}, "not a Config"),
        (["training"], {"$class": "tests.config.toys:StageConfig"}, "training"),
        (["training"], None, "training"),
        (["model"], {"$class": "tests.config.toys:ModelConfig"}, "model.dim is missing"),
        (["$class"], "unheard_of_package.module:Config", "has not been imported"),
        (["$class"], 3, "3"),
    ],
)
def test_a_damaged_or_hostile_file_is_refused_and_the_place_is_named(path, value, complaint):
    modules = set(sys.modules)
    with pytest.raises(ConfigError, match=complaint):
        from_json(change(path, value))
    assert not {name for name in set(sys.modules) - modules if not name.startswith("monograph")}


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"steps": 3}', "[" * 100_000])
def test_text_that_is_no_configuration_is_refused(text):
    with pytest.raises(ConfigError):
        parse_json(text)


def test_sameness_tells_types_apart_and_nan_equals_nan():
    assert is_same(math.nan, math.nan) and not is_same(1, 1.0) and not is_same((1,), [1]) and not is_same(True, 1)
    assert not is_same(ModelConfig(dim=2), WideModelConfig(dim=2))


def test_json_is_stable_text():
    assert dump_json(make_full_run()) == dump_json(make_full_run())
    assert json.loads(dump_json(make_full_run())) == to_json(make_full_run())
    assert isinstance(from_json(to_json(make_run())), RunConfig)
