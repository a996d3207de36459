"""A number outside its field's range is refused by name, with the range."""

from types import SimpleNamespace

import pytest

from monograph.config.ranges import FP32_MAX, FP32_TINY, check_range
from monograph.errors import ConfigError


@pytest.mark.parametrize("value", [0.5, 1, 8, 0])
def test_a_value_in_the_range_is_accepted(value):
    check_range(SimpleNamespace(size=value), "size", 0.5, 8, zero="for none")


@pytest.mark.parametrize("value", [0, -1, 0.49, 8.01, float("nan")])
def test_a_value_outside_the_range_is_refused_with_the_range(value):
    with pytest.raises(ConfigError, match=rf"size is {value}\n.*between 0\.5 and 8: sizes are small"):
        check_range(SimpleNamespace(size=value), "size", 0.5, 8, why="sizes are small")


def test_the_bounds_are_those_of_float32():
    torch = pytest.importorskip("torch")
    assert torch.finfo(torch.float32).tiny == FP32_TINY and torch.finfo(torch.float32).max == FP32_MAX
