import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monograph.train.data.document import Document, find_key
from monograph.train.data.encode import count_noun
from monograph.train.data.split import find_members, is_held_out

keys = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=200)
fractions = st.floats(0, 0.99)


@given(keys, fractions)
def test_each_document_is_in_exactly_one_split(keys, fraction):
    keys = np.array(keys, np.uint64)
    train, held = (find_members(keys, fraction, split) for split in ("train", "validation"))
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(len(keys)))
    assert not set(keys[train].tolist()) & set(keys[held].tolist())
    assert len(train) > 0


def test_the_share_held_out_is_the_share_asked_for():
    keys = np.array([find_key(Document("", f"text {number}")) for number in range(20_000)], np.uint64)
    assert abs(len(find_members(keys, 0.1, "validation")) - 2000) < 150  # deviation 42


def test_nothing_is_held_out_when_nothing_is_asked_for():
    assert len(find_members(np.arange(100, dtype=np.uint64), 0.0, "validation")) == 0
    assert not is_held_out(0, 0.0)


def test_a_document_stays_in_its_split_when_others_come_and_go():
    texts = [f"text {number}" for number in range(2000)]
    keys = np.array([find_key(Document("anywhere", text)) for text in texts], np.uint64)
    held = {texts[index] for index in find_members(keys, 0.1, "validation")}
    fewer = {texts[::3][index] for index in find_members(keys[::3], 0.1, "validation")}
    assert fewer == held & set(texts[::3]) and fewer


def test_one_document_alone_is_training_data():
    assert find_members(np.zeros(1, np.uint64), 0.9, "train").tolist() == [0]
    assert find_members(np.full(5, 3, np.uint64), 0.9, "train").tolist() == [0, 1, 2, 3, 4]


def test_of_several_texts_at_least_one_is_held_out():
    keys = np.array([7, 5, 2**64 - 1, 5], np.uint64)
    assert find_members(keys, 1e-19, "validation").tolist() == [1, 3], "with its copies"
    assert find_members(keys, 1e-19, "train").tolist() == [0, 2]
    assert not len(find_members(keys, 0.0, "validation"))


@given(st.integers(1, 2**64 - 1), fractions)
def test_a_stream_and_a_corpus_agree(key, fraction):
    keys = np.array([key, 0, 2**64 - 1], np.uint64)
    assert (0 in find_members(keys, fraction, "validation")) == is_held_out(key, fraction)


def test_counts_are_printed_with_the_right_number_of_their_nouns():
    assert [count_noun(n, "document") for n in (0, 1, 2, 12_345)] == [
        "0 documents", "1 document", "2 documents", "12.3k documents",
    ]  # fmt: skip
