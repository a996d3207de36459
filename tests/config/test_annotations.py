"""Annotations in words, for errors and help."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from monograph.config.annotations import describe, is_valid, make_example, name_type
from monograph.config.parse import parse_words
from tests.config.toys import Color, StageConfig


@pytest.mark.parametrize(
    ("annotation", "words", "short"),
    [
        (int, "a whole number", "int"),
        (float, "a number", "float"),
        (bool, "true or false", "bool"),
        (str, "text", "str"),
        (int | None, "a whole number or None", "int | None"),
        (Optional[str], "text or None", "str | None"),  # noqa: UP045 - the older spelling must work too
        (Literal["a", "b"], "one of: a, b", "a|b"),
        (list[int], "a list of whole numbers", "list[int]"),
        (tuple[float, ...], "a list of numbers", "tuple[float, ...]"),
        (tuple[int, str], "2 values: a whole number, text", "tuple[int, str]"),
        (dict[str, int], "pairs of texts and whole numbers", "dict[str, int]"),
        (list[Literal["a", "b"]], "a list of values, each one of: a, b", "list[a|b]"),
        (Callable[[int], int], "a function, written as package.module:function", "function"),
        (Path, "a path", "Path"),
        (Color, "one of: RED, BLUE", "Color"),
        (StageConfig, "a section (StageConfig)", "StageConfig"),
        (Any, "any value", "Any"),
    ],
)
def test_a_type_has_words_for_errors_and_a_short_name_for_tables(annotation, words, short):
    assert describe(annotation) == words and name_type(annotation) == short


@pytest.mark.parametrize(
    "annotation",
    [int, float, bool, str, int | None, Literal["a", "b"], list[int], tuple[int, str], dict[str, float], Color],
)
def test_an_example_is_accepted_by_the_type_it_is_an_example_of(annotation):
    assert is_valid(parse_words(make_example(annotation).split(), annotation), annotation)


def test_a_text_is_never_taken_for_a_sequence_of_letters():
    assert is_valid(["a"], Sequence[str]) and not is_valid("a", Sequence[str])
