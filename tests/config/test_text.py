"""The text form: one line per value, the same every time."""

from monograph.config.text import format_config, format_value
from tests.config.toys import ModelConfig, RunConfig, StageConfig, double, make_run


def test_every_value_is_one_line_and_swapped_classes_are_named():
    lines = format_config(make_run(stages=[StageConfig(first=1)])).splitlines()
    assert lines[:3] == ["validator = None", "model = tests.config.toys:WideModelConfig", "model.dim = 64"]
    assert "training.transform = tests.config.toys:double" in lines
    assert lines[-1] == "stages.0.first = 1"
    assert len(lines) == len(set(lines))


def test_a_section_of_the_declared_class_needs_no_name():
    assert "ModelConfig" not in format_config(RunConfig(model=ModelConfig(dim=2)))


def test_values_are_written_without_addresses_or_hash_order():
    assert format_value({"b": (1,), "a": [double]}) == "{'b': (1,), 'a': [tests.config.toys:double]}"
    assert format_value({"x", "y", "z"}) == "{'x', 'y', 'z'}"
