"""Mixtures: weights that hold everywhere, an order that one cursor decides, the same for any number of parts."""

import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monograph.errors import DataError
from monograph.train.data.cursor import Cursor
from monograph.train.data.interleave import MODULUS, Interleaving, floor_sum
from monograph.train.data.mixture import MixedSamples
from tests.kit.data import build_loader
from tests.kit.runs import write_texts

WEIGHTS = (0.7, 0.2, 0.1)


@given(st.integers(0, 50), st.integers(1, 40), st.integers(0, 100), st.integers(0, 100))
def test_the_sum_of_floors_is_that_of_the_terms(count, modulus, stride, offset):
    assert floor_sum(count, modulus, stride, offset) == sum((stride * i + offset) // modulus for i in range(count))


@settings(max_examples=30)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=5), st.integers(0, MODULUS - 1), st.integers(0, 400))
def test_the_index_of_a_sample_is_how_many_its_source_had_before(weights, seed, number):
    order = Interleaving(weights, seed)
    seen = Counter(order.find_source(each) for each in range(number))
    assert [order.count(number, source) for source in range(len(weights))] == [
        seen[source] for source in range(len(weights))
    ]


@pytest.mark.parametrize("start", [0, 12_345, 10**15])
@pytest.mark.parametrize("seed", [0, 7, 2**63 + 11])
def test_the_weights_hold_over_any_ten_thousand_samples(start, seed):
    """Within a hundredth of each weight; and each source has every one of its samples exactly once."""
    order = Interleaving(WEIGHTS, seed)
    for source, weight in enumerate(WEIGHTS):
        count = order.count(start + 10_000, source) - order.count(start, source)
        assert abs(count - 10_000 * weight) <= 0.01 * 10_000 * weight
    first = [(order.find_source(number), start + index) for index, number in enumerate(range(start, start + 300))]
    for source in range(3):
        places = [order.count(number, source) for found, number in first if found == source]
        assert places == list(range(places[0], places[0] + len(places)))


def test_another_seed_is_another_order():
    orders = [[Interleaving(WEIGHTS, seed).find_source(number) for number in range(50)] for seed in (1, 1, 2**63)]
    assert orders[0] == orders[1] != orders[2]


class Numbers:
    """A source whose samples are their own numbers; it cannot be read backwards."""

    def __init__(self, size, base):
        self.samples_per_epoch, self.base = size, base

    def sample(self, epoch, index):
        return {"tokens": np.array([self.base + 1000 * epoch + index])}

    def read(self, cursor, runs, closing):
        last = -1
        for run in runs:
            for number in run:
                assert number > last
                last = number
                place = cursor.advance(number, self.samples_per_epoch)
                yield self.sample(place.epoch, place.sample)


def mixed():
    return MixedSamples([Numbers(7, 10_000), Numbers(None, 20_000), Numbers(50, 30_000)], "abc", WEIGHTS, seed=3)


def test_every_source_is_seen_from_front_to_back_and_begins_again():
    samples = [mixed().sample(0, number) for number in range(100)]
    first = [int(sample["tokens"][0]) for sample in samples if sample["source"] == 0]
    assert first[:15] == [10_000 + 1000 * (index // 7) + index % 7 for index in range(15)]


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("start", [0, 37])
def test_parts_together_see_the_samples_of_one_from_any_position(parts, start):
    batch, share = 8, 8 // parts
    found = {}
    for part in range(parts):
        runs = (range(batch * update + part * share, batch * update + (part + 1) * share) for update in range(4))
        numbers = (batch * update + part * share + index for update in range(4) for index in range(share))
        samples = mixed().read(Cursor(0, start), runs, threading.Event())
        found |= {number: int(sample["tokens"][0]) for number, sample in zip(numbers, samples, strict=True)}
    assert [found[number] for number in range(32)] == [
        int(mixed().sample(0, start + number)["tokens"][0]) for number in range(32)
    ]


def make_texts(letter, count):
    return [f"{letter * 40} {number}" for number in range(count)]


@pytest.fixture
def entries(tmp_path):
    files = {
        name: write_texts(tmp_path / f"{name}.jsonl", make_texts(name[0], 60)) for name in ("web", "code", "books")
    }
    return tuple(f"{name}={weight}:{files[name]}" for name, weight in zip(files, WEIGHTS, strict=True))


def test_a_loader_reads_a_mixture_and_validates_each_source_by_itself(entries):
    loader = build_loader("builtin", mixture=entries, held_out_fraction=0.1)
    held = loader.open_validation_sets()
    assert list(held) == ["web", "code", "books"]
    letters = {name: "".join(map(chr, held[name].sample(0, 0)["tokens"][:8])) for name in held}
    assert all(set(text) & set(name[0]) for name, text in letters.items())
    assert loader.mixture is not None and sum(loader.mixture.count_seen(10_000).values()) == 10_000


def test_other_weights_and_other_content_are_other_data(entries, tmp_path):
    def print_of(mixture, **changes):
        return build_loader("builtin", mixture=mixture, **changes).fingerprint()

    saved = print_of(entries)
    assert print_of(entries) == saved
    assert print_of((*entries[:2], entries[2].replace("=0.1:", "=0.2:"))) != saved
    assert print_of(entries, seed=9) != saved
    write_texts(tmp_path / "books.jsonl", make_texts("b", 61))
    with pytest.raises(DataError, match="content_hash"):
        build_loader("builtin", mixture=entries).check_fingerprint(saved)


def test_a_source_that_cannot_be_read_is_named(entries, tmp_path):
    (tmp_path / "code.jsonl").unlink()
    with pytest.raises(DataError, match=r"dataloader.mixture, code: .*code.jsonl"):
        build_loader("builtin", mixture=entries)
