"""JSON without NaN and infinities, and every float back."""

import ast
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monograph import strict_json

NAMES = st.text(st.characters(codec="ascii", exclude_characters="/"), min_size=1).filter(
    lambda name: name != strict_json.NON_FINITE
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_what_is_written_is_read_back_by_a_strict_parser(value):
    assert repr(strict_json.restore(strict_json.parse(strict_json.dump(value)))) == repr(value)


def test_a_value_that_is_not_finite_is_null_and_named_by_its_path():
    written = strict_json.dump({"a": [1.5, math.inf], "b": {"c": -math.inf, "d": math.nan}})
    assert strict_json.parse(written) == {
        "a": [1.5, None],
        "b": {"c": None, "d": None},
        "non_finite": {"a/1": "inf", "b/c": "-inf", "b/d": "nan"},
    }


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_bare_constant_is_no_json(word):
    with pytest.raises(ValueError, match=word):
        strict_json.parse(f'{{"loss": {word}}}')


def test_no_file_is_written_by_a_json_writer_that_lets_nan_pass():
    """Every `json.dump` and `json.dumps` of the package says allow_nan=False, unless its text only goes into a message,
    a hash or a comparison."""
    lenient = []
    for path in sorted((Path(__file__).parent.parent / "monograph").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_writer = isinstance(node, ast.Call) and re.fullmatch(r"json\.dumps?", ast.unparse(node.func))
            if is_writer and not any(keyword.arg == "allow_nan" for keyword in node.keywords):
                lenient.append(f"{path.parent.name}/{path.name}: {ast.unparse(node)[:60]}")
    allowed = {
        "config/json_form.py": "compared, or part of an error's text",
        "monograph/strict_json.py": "copies what was parsed",
        "locks/holder.py": "whole numbers and texts",
        "data/shard_index.py": "hashed",
        "step_cache/entry.py": "a name",
        "launch/quote.py": "a text",
        "compat/rendezvous_state.py": "whole numbers and texts",
        "artifact/manifest.py": "a name",
        "compat/triton_cache.py": "paths",
        "config/python_form.py": "a text",
        "parallel/rank_devices.py": "texts and whole numbers, from rank to rank",
        "generate/lm_eval_model.py": "compared",
    }
    assert [each for each in lenient if each.partition(": ")[0] not in allowed] == []
