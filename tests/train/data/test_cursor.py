import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monograph.errors import DataError
from monograph.train.data.cursor import Cursor

counts = st.integers(0, 10_000)


@given(counts, counts, st.integers(1, 300))
def test_advancing_in_two_steps_is_advancing_once(first, second, samples_per_epoch):
    start = Cursor(0, 0)
    assert start.advance(first, samples_per_epoch).advance(second, samples_per_epoch) == start.advance(
        first + second, samples_per_epoch
    )


@given(counts, st.integers(1, 300))
def test_a_position_counts_all_samples_behind_it(count, samples_per_epoch):
    cursor = Cursor().advance(count, samples_per_epoch)
    assert cursor.epoch * samples_per_epoch + cursor.sample == count and cursor.sample < samples_per_epoch


def test_an_epoch_ends_exactly_after_its_last_sample():
    assert Cursor(2, 8).advance(1, 10) == Cursor(2, 9)
    assert Cursor(2, 9).advance(1, 10) == Cursor(3, 0)
    assert Cursor(0, 9).advance(21, 10) == Cursor(3, 0)


def test_a_stream_stays_in_its_one_epoch():
    assert Cursor(0, 5).advance(1_000_000, None) == Cursor(0, 1_000_005)


def test_a_position_survives_json():
    cursor = Cursor(3, 141)
    assert Cursor.from_json(json.loads(json.dumps(cursor.to_json()))) == cursor


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"epoch": 1},
        {"epoch": 1, "sample": -1},
        {"epoch": 1.0, "sample": 2},
        {"epoch": True, "sample": 2},
        {"epoch": 1, "sample": 2, "rank": 3},
    ],
)
def test_anything_else_is_not_a_position(saved):
    with pytest.raises(DataError, match="not a position"):
        Cursor.from_json(saved)


@pytest.mark.parametrize("cursor", [Cursor(0, 10), Cursor(0, -1), Cursor(-1, 0)])
def test_a_position_outside_the_data_is_refused(cursor):
    with pytest.raises(DataError, match="outside data with 10 samples"):
        cursor.check(10)
    Cursor(99, 9).check(10)
