"""Field descriptions come from the string under each field."""

import dataclasses

from monograph.config.docs import find_field_docs, find_summary
from tests.config.toys import ModelConfig, RunConfig, StageConfig, WideModelConfig


def test_the_string_under_a_field_is_its_description():
    assert find_field_docs(ModelConfig)["dim"] == "Width of the model."


def test_a_description_over_several_lines_becomes_one():
    assert find_field_docs(ModelConfig)["layers"] == "How many blocks."


def test_inherited_fields_keep_their_description_and_redefined_ones_change_it():
    docs = find_field_docs(WideModelConfig)
    assert docs["dim"] == "Width of the model."
    assert docs["rope"] == "Positions, further apart."
    assert docs["experts"] == "Only the wide one has experts."


def test_a_class_made_without_source_has_empty_descriptions():
    made = dataclasses.make_dataclass("Made", [("x", int, 1)])
    assert find_field_docs(made) == {"x": ""}


def test_the_summary_of_a_class_is_its_docstring_and_never_its_signature():
    assert find_summary(RunConfig) == "A whole run."
    assert find_summary(StageConfig) == ""
