"""Numbers as people read them."""

import pytest

from monograph.report.units import format_bytes, format_seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (41.3 * 2**20, "41.3 MiB"), (150 * 2**30, "150 GiB")],
)
def test_bytes_have_three_digits_that_matter(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 us"), (2.5e-6, "2.5 us"), (0.0123, "12.3 ms"), (61.44, "61.4 s")])
def test_seconds_have_three_digits_that_matter(seconds, text):
    assert format_seconds(seconds) == text
