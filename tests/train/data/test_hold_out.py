"""What is held out of a small corpus: one file is enough to train on and to validate on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monograph.errors import DataError
from monograph.train.data.corpus import CorpusBuilder
from monograph.train.data.document import Document, find_key
from monograph.train.data.hold_out import plan_held_out, split_corpus
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from tests.kit.data import build_loader
from tests.kit.runs import write_texts


def make_corpus(lengths):
    tokenizer = StandardTokenizerConfig().build()
    builder = CorpusBuilder(tokenizer.dtype)
    for number, length in enumerate(lengths):
        text = f"{number:04d}".ljust(length - 1, "x")[: length - 1]
        builder.add(tokenizer.encode_documents([text])[0], find_key(Document("here", text)))
    return builder.finish("texts")


def hold_out(corpus, fraction, seq_len):
    return split_corpus(corpus, plan_held_out([corpus], fraction, seq_len))


def test_one_file_is_enough(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("To be, or not to be, that is the question. " * 50)
    train = build_loader(path, seq_len=64)
    (held,) = train.open_validation_sets().values()
    assert held.samples_per_epoch == 1, "two percent would be less than a sequence"
    assert train.samples_per_epoch == (2151 - 64) // 64
    text = path.read_text()
    assert bytes(held.sample(0, 0)["tokens"].tolist()[:-1]).decode() == text[-63:], "its end"
    assert train.samples.content_hash != held.samples.content_hash


def test_thirty_small_files_are_enough(tmp_path):
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(f"file {number} " * 10)
    train = build_loader(tmp_path, seq_len=256)
    (held,) = train.open_validation_sets().values()
    assert held.samples_per_epoch >= 1 and train.samples_per_epoch >= 5


@settings(max_examples=60)
@given(
    st.lists(st.integers(6, 400), min_size=1, max_size=12), st.sampled_from([0.01, 0.1, 0.4]), st.sampled_from([8, 64])
)
def test_both_splits_fill_a_sequence_or_everything_is_training_data(lengths, fraction, seq_len):
    corpus, held_out = hold_out(make_corpus(lengths), fraction, seq_len)
    counts = corpus.find_lengths(np.arange(corpus.document_count))
    assert counts.sum() == sum(lengths) and (counts > 0).all()
    held, trained = int(counts[held_out].sum()), int(counts[~held_out].sum())
    if held:
        assert held >= seq_len and trained >= seq_len
    else:
        assert max(lengths) < 2 * max(seq_len, fraction * sum(lengths) + 1), "a document that could have been cut"


def test_one_huge_document_is_not_held_out_whole():
    for order in ([10, 4000], [4000, 10]):
        corpus, held_out = hold_out(make_corpus(order), 0.02, 64)
        assert int(corpus.find_lengths(held_out.nonzero()[0]).sum()) <= 100


def test_too_little_for_both_is_training_data_and_validating_on_it_is_refused(tmp_path):
    path = write_texts(tmp_path / "t.jsonl", ["a" * 30])
    train = build_loader(path, seq_len=16)
    assert train.samples_per_epoch == 1
    with pytest.raises(DataError, match="nothing is held out for validation") as error:
        train.open_validation_sets()
    assert "--validator.interval 0" in error.value.do


def test_another_fraction_is_another_cut(tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("word " * 2000)
    prints = [build_loader(path, held_out_fraction=fraction).fingerprint() for fraction in (0.1, 0.2, 0.1)]
    assert prints[0] == prints[2] != prints[1]
