"""Nothing of a dataset is left out without a word, and nothing is read twice because of a link."""

import json
import logging

import pytest

from monograph.errors import DataError
from monograph.train.data.corpus import CorpusBuilder
from monograph.train.data.encode import tokenize_into
from monograph.train.data.files import open_files
from monograph.train.data.tokenizer_config import StandardTokenizerConfig


def read(path, **options):
    return [document.text for document in open_files(path, text_field="text", **options).read()]


def test_a_link_to_a_file_of_the_dataset_does_not_double_it(tmp_path, caplog):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("one")
    (tmp_path / "a.txt").symlink_to("sub/b.txt")
    (tmp_path / "c.txt").symlink_to(tmp_path / "a.txt")
    with caplog.at_level(logging.INFO, "monograph"):
        assert read(tmp_path) == ["one"]
    assert "2 already read under another name (a.txt, c.txt)" in caplog.text


def test_files_that_only_links_lead_to_are_read_once(tmp_path):
    """As the hub's cache stores them: files without an ending, some of them hidden, and links with one."""
    for folder in ("data/blobs", "data/.cache", "data/snapshot", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    for number, blob in enumerate(("data/blobs/0a", "data/.cache/0b.txt", "outside/0c.txt")):
        (tmp_path / blob).write_text(blob)
        for name in ("first", "second"):
            (tmp_path / "data" / "snapshot" / f"{name}{number}.txt").symlink_to(tmp_path / blob)
    assert read(tmp_path / "data") == ["data/blobs/0a", "data/.cache/0b.txt", "outside/0c.txt"]


def test_documents_without_text_are_counted(tmp_path, caplog):
    rows = [{"text": text} for text in ("one", "", "two", "", "")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tokenizer = StandardTokenizerConfig().build()
    with caplog.at_level(logging.INFO, "monograph"):
        tokenize_into(CorpusBuilder(tokenizer.dtype), open_files(tmp_path, text_field="text"), tokenizer)
    assert "leaving out 3 documents without text" in caplog.text


def test_a_row_with_two_texts_is_refused_and_other_fields_may_come_twice(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one", "id": 1, "id": 2, "meta": {"text": 3}}\n{"text": "two", "text": "three"}')
    with pytest.raises(DataError, match=r"a\.jsonl:2: this line is not JSON") as error:
        read(path)
    assert "'text' twice" in error.value.why
    path.write_text(path.read_text().split("\n")[0])
    assert read(path) == ["one"]
