"""Differences are named by path, with both values."""

import math

from monograph.config.diff import ABSENT, find_differences
from tests.config.toys import ModelConfig, RunConfig, WideModelConfig, make_run


def test_equal_configs_do_not_differ_even_in_nan():
    left, right = make_run(), make_run()
    left.training.lr = right.training.lr = math.nan
    assert find_differences(left, right) == []


def test_each_changed_value_is_one_difference():
    left, right = make_run(), make_run()
    right.training.steps, right.model.rope.max_seq_len = 5, 9
    assert [(d.path, d.left, d.right) for d in find_differences(left, right)] == [
        ("model.rope.max_seq_len", 8192, 9),
        ("training.steps", 100, 5),
    ]
    assert str(find_differences(left, right)[1]) == "training.steps: 100 -> 5"


def test_sections_of_another_class_differ_by_class_and_by_the_fields_only_one_has():
    left, right = RunConfig(model=ModelConfig(dim=2)), RunConfig(model=WideModelConfig(dim=2))
    found = {d.path: (d.left, d.right) for d in find_differences(left, right)}
    assert found["model.$class"] == ("tests.config.toys:ModelConfig", "tests.config.toys:WideModelConfig")
    assert found["model.experts"] == (ABSENT, 8)
    assert str(found["model.experts"][0]) == "(absent)"
