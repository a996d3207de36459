import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monograph.train.data import packing
from monograph.train.data.packing import CHUNK_DOCUMENTS, SPAN, PackedSamples
from tests.kit.data import as_rows, build_corpus, naive_samples

some_lengths = st.lists(st.integers(1, 40), min_size=1, max_size=200)


def pack(corpus, *, members=None, seq_len=8, seed=3, shuffle=True):
    members = np.arange(corpus.document_count, dtype=np.uint32) if members is None else members
    return PackedSamples(corpus, members, seq_len=seq_len, seed=seed, shuffle=shuffle)


def find_order(samples, epoch):
    """The numbers of all documents of an epoch, in its order."""
    layout = samples.find_layout(epoch)
    return np.concatenate([layout.find_span(place) for place in range(len(layout.spans))])


def find_documents(samples, epoch):
    corpus = samples.corpus
    return [
        corpus.read(document, 0, 10**6)[: corpus.find_lengths(np.array([document]))[0]].tolist()
        for document in find_order(samples, epoch).tolist()
    ]


@settings(deadline=None)
@given(some_lengths, st.integers(1, 50), st.integers(0, 5), st.booleans(), st.integers(1, 200))
def test_samples_are_those_of_the_obvious_packing(lengths, seq_len, epoch, shuffle, piece_tokens):
    samples = pack(build_corpus(lengths, piece_tokens=piece_tokens), seq_len=seq_len, shuffle=shuffle)
    expected = naive_samples(find_documents(samples, epoch), seq_len)
    assert samples.samples_per_epoch == len(expected) == sum(lengths) // seq_len
    layout = samples.find_layout(epoch)
    assert [as_rows(layout.cut(index, seq_len)) for index in range(len(expected))] == [as_rows(one) for one in expected]
    seen = [as_rows(samples.sample(epoch, index)) for index in range(len(expected))]
    assert sorted(seen) == sorted(as_rows(one) for one in expected)
    if not shuffle:
        assert seen == [as_rows(one) for one in expected]


@settings(deadline=None)
@given(some_lengths, st.integers(0, 3))
def test_every_document_is_laid_out_once_per_epoch(lengths, epoch):
    samples = pack(build_corpus(lengths))
    assert sorted(find_order(samples, epoch).tolist()) == list(range(len(lengths)))


def test_a_sample_at_borders_reads_like_this():
    # documents: 0 1 2 | 3 | 4 5 6 7 8 9 | 10 11, cut every five tokens
    samples = pack(build_corpus([3, 1, 6, 2]), seq_len=5, shuffle=False)
    first, second = samples.sample(0, 0), samples.sample(0, 1)
    assert samples.samples_per_epoch == 2
    assert first["tokens"].tolist() == [0, 1, 2, 3, 4]
    assert first["labels"].tolist() == [1, 2, -100, -100, 5]
    assert first["positions"].tolist() == [0, 1, 2, 0, 0]
    assert first["documents"].tolist() == [0, 0, 0, 1, 2]
    assert second["tokens"].tolist() == [5, 6, 7, 8, 9]
    assert second["labels"].tolist() == [6, 7, 8, 9, -100]
    assert second["positions"].tolist() == [0, 1, 2, 3, 4]
    assert second["documents"].tolist() == [0, 0, 0, 0, 0]


def test_the_last_sample_needs_no_token_after_it():
    samples = pack(build_corpus([4, 4]), seq_len=4, shuffle=False)
    assert samples.samples_per_epoch == 2
    assert samples.sample(0, 1)["labels"].tolist() == [5, 6, 7, -100]


def test_arrays_are_int64():
    sample = pack(build_corpus([30])).sample(0, 0)
    assert {sample[name].dtype for name in ("tokens", "labels", "positions", "documents")} == {np.dtype(np.int64)}


def test_only_the_members_of_a_split_are_read():
    corpus = build_corpus([10] * 20)
    members = np.array([3, 7, 11], dtype=np.uint32)
    samples = pack(corpus, members=members, seq_len=5)
    tokens = {int(token) for index in range(samples.samples_per_epoch) for token in samples.sample(0, index)["tokens"]}
    assert tokens == {token for member in members.tolist() for token in range(member * 10, member * 10 + 10)}


def test_orders_differ_between_epochs_and_seeds_and_are_repeated_exactly():
    corpus = build_corpus([5, 9, 2, 14] * 50)

    def order(seed, epoch):
        samples = pack(corpus, seed=seed)
        return tuple(as_rows(samples.sample(epoch, index)) for index in range(samples.samples_per_epoch))

    orders = {(seed, epoch): order(seed, epoch) for seed in (1, 2) for epoch in (0, 1, 2)}
    assert len(set(orders.values())) == 6
    assert all(order(*place) == found for place, found in orders.items())


def test_the_samples_of_one_long_document_are_spread_over_the_epoch():
    samples = pack(build_corpus([4000]), seq_len=4)
    starts = [int(samples.sample(0, index)["tokens"][0]) for index in range(samples.samples_per_epoch)]
    assert sorted(starts) == list(range(0, 4000, 4))
    assert sum(abs(left - right) == 4 for left, right in itertools.pairwise(starts)) < 20


def test_a_large_corpus_is_laid_out_in_chunks_with_the_same_result(monkeypatch):
    corpus = build_corpus([3, 1, 8] * (SPAN + 5))
    whole = pack(corpus).find_layout(0)
    monkeypatch.setattr(packing, "CHUNK_DOCUMENTS", SPAN)
    pieces = pack(corpus).find_layout(0)
    assert np.array_equal(whole.spans, pieces.spans) and np.array_equal(whole.span_starts, pieces.span_starts)
    assert CHUNK_DOCUMENTS % SPAN == 0


@pytest.mark.parametrize("count", [SPAN - 1, SPAN, 3 * SPAN + 7])
def test_documents_of_many_spans_are_seen_once_an_epoch_and_far_from_where_they_lie(count):
    samples = pack(build_corpus([1, 3] * (count // 2) + [2] * (count % 2)), seq_len=5)
    order = find_order(samples, 1)
    assert sorted(order.tolist()) == list(range(count))
    assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 12, "2 expected in each span"
    layout = samples.find_layout(1)
    assert [as_rows(layout.cut(n, 5)) for n in range(samples.samples_per_epoch)] == [
        as_rows(one) for one in naive_samples(find_documents(samples, 1), 5)
    ]


def test_an_epoch_needs_neither_time_nor_memory_for_each_document(monkeypatch):
    """What is done when an epoch begins is counted: permuted indices, and bytes that are kept."""
    permuted, apply = [], packing.Permutation.apply
    monkeypatch.setattr(
        packing.Permutation, "apply", lambda self, found: permuted.append(len(found)) or apply(self, found)
    )
    samples = pack(build_corpus([2] * 100 * SPAN), seq_len=64)
    layout = samples.find_layout(1)
    assert sum(permuted) == 100 and layout.spans.nbytes + layout.span_starts.nbytes < 17 * 100
    samples.sample(1, 7)
    assert sum(permuted) <= 100 + 1 + 2 * SPAN


def test_few_epochs_are_kept():
    samples = pack(build_corpus([50] * 10))
    first, order = samples.find_layout(0), find_order(samples, 0)
    for epoch in range(5):
        samples.find_layout(epoch)
    assert samples.find_layout(0) is not first
    assert np.array_equal(find_order(samples, 0), order)


@pytest.mark.parametrize("index", [-1, 3, 100])
def test_a_sample_outside_the_epoch_does_not_exist(index):
    with pytest.raises(IndexError, match="of 3"):
        pack(build_corpus([25])).sample(0, index)
