import logging

import pytest

from tests.kit.data import build_loader, make_texts, write_texts


@pytest.mark.parametrize(("texts", "count"), [(["new"] * 30, 0), ([*make_texts(60)[:3], *["new"] * 30], 3)])
def test_validation_texts_that_are_trained_on_are_counted(tmp_path, caplog, texts, count):
    train, own = write_texts(tmp_path / "train.jsonl", make_texts(60)), write_texts(tmp_path / "own.jsonl", texts)
    with caplog.at_level(logging.WARNING, "monograph"):
        build_loader(train, validation_datasets=(f"books={own}",)).open_validation_sets()
    assert (f"books: {count} of its {len(texts)} documents are in the training data too" in caplog.text) == bool(count)
