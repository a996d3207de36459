"""Ranks of one node share one tokenized corpus, and whatever goes wrong is known to all of them."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from monograph.errors import DataError
from monograph.train import node_corpus
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.dataset_name import find_source
from monograph.train.data.text_source import TextSource
from monograph.train.data.token_file import TokenFile
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from monograph.train.node_corpus import load_on_node
from tests.kit.data import make_texts, write_texts
from tests.train.test_open_data import Meeting

TOKENIZER = StandardTokenizerConfig().build()


def open_source(path):
    return find_source(str(path), DataLoaderConfig(dataset=str(path))).build()


@pytest.fixture
def texts(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return write_texts(tmp_path / "texts.jsonl", make_texts(40))


def run(paths, monkeypatch, *, machines=None, sleep=lambda _: os.sched_yield()):
    """What each rank gets or raises, and the ranks that tokenized."""
    tokenized, meeting = [], Meeting(len(paths))
    tokenize_into = node_corpus.tokenize_into

    def note(sink, source, tokenizer):
        tokenized.append(source.rank)
        return tokenize_into(sink, source, tokenizer)

    monkeypatch.setattr(node_corpus, "tokenize_into", note)
    monkeypatch.setattr("monograph.train.data.text_source.tokenize_into", note)

    def load(rank):
        groups = SimpleNamespace(has_peers=True, **vars(meeting.join(rank)))
        source = open_source(paths[rank])
        source.rank = rank
        if machines:
            groups.all_gather_object = _named(groups.all_gather_object, machines[rank])
        try:
            return load_on_node(groups, source, TOKENIZER, sleep=sleep)
        except DataError as error:
            return str(error)

    with ThreadPoolExecutor(len(paths)) as pool:
        return list(pool.map(load, range(len(paths)))), sorted(tokenized)


def _named(gather, machine):
    """The first value that a rank gathers says where it is."""
    calls = iter([True])
    return lambda value: gather((machine, *value[1:]) if next(calls, False) else value)


def read_all(corpus):
    return np.concatenate([piece[:] for piece in corpus.pieces]).tolist(), corpus.offsets.tolist(), corpus.keys.tolist()


def is_on_disk(corpus):
    return isinstance(corpus.pieces[0], TokenFile)


def test_one_rank_of_a_node_tokenizes_and_all_map_its_corpus(texts, monkeypatch):
    alone = open_source(texts).load_corpus(TOKENIZER)
    corpora, tokenized = run([texts] * 4, monkeypatch)
    assert tokenized == [0]
    for corpus in corpora:
        assert is_on_disk(corpus)
        assert read_all(corpus) == read_all(alone)
        assert (corpus.content_hash, corpus.max_token_id, corpus.description) == (
            *(alone.content_hash, alone.max_token_id, alone.description),
        )
    assert os.listdir(tempfile.gettempdir()) == [], "the copy is deleted once it is mapped"


def test_each_node_has_a_copy_of_its_own(texts, monkeypatch):
    corpora, tokenized = run([texts] * 5, monkeypatch, machines=["a", "a", "b", "b", "c"])
    assert tokenized == [0, 2, 4]
    assert [is_on_disk(corpus) for corpus in corpora] == [True, True, True, True, False]


def test_text_that_cannot_be_read_is_one_error_on_every_rank(texts, monkeypatch):
    texts.write_text("{}\n")
    found, _ = run([texts] * 3, monkeypatch, machines=["a", "a", "b"])
    assert len(set(found)) == 1 and "there is no field 'text'" in found[0]
    assert os.listdir(tempfile.gettempdir()) == []


def test_a_full_disk_for_temporary_files_leaves_every_rank_its_own_corpus(texts, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node_corpus.ShardWriter, "finish", fail)
    corpora, tokenized = run([texts] * 2, monkeypatch)
    assert tokenized == [0, 0, 1]
    assert not any(is_on_disk(corpus) for corpus in corpora)
    assert os.listdir(tempfile.gettempdir()) == []


def test_a_rank_that_dies_while_it_tokenizes_is_not_waited_for(tmp_path):
    with pytest.raises(DataError, match="has ended"):
        node_corpus._wait(tmp_path, 2**22 - 3, lambda _: None)


def test_a_source_that_loads_its_own_corpus_does_so_on_every_rank():
    class Own(TextSource):
        def load_corpus(self, tokenizer):
            return "own"

    groups = SimpleNamespace(has_peers=True, all_gather_object=None)
    assert load_on_node(groups, Own(None), TOKENIZER) == "own"


def test_the_temporary_copy_is_closed_to_other_users(texts, monkeypatch):
    modes = []
    write = node_corpus._write

    def note(folder, *rest):
        modes.append(Path(folder).stat().st_mode & 0o777)
        write(folder, *rest)

    monkeypatch.setattr(node_corpus, "_write", note)
    run([texts] * 2, monkeypatch)
    assert modes == [0o700]
