import numpy as np

from monograph.train.data.corpus import find_token_dtype
from tests.kit.data import build_corpus


def test_documents_are_read_back_whole_and_in_parts_from_many_pieces():
    corpus = build_corpus([3, 5, 1, 4], piece_tokens=4)
    assert len(corpus.pieces) == 4
    assert [corpus.read(document, 0, length).tolist() for document, length in enumerate([3, 5, 1, 4])] == [
        [0, 1, 2],
        [3, 4, 5, 6, 7],
        [8],
        [9, 10, 11, 12],
    ]
    assert corpus.read(1, 2, 4).tolist() == [5, 6]
    assert corpus.find_lengths(np.array([3, 0], np.uint32)).tolist() == [4, 3]
    assert (corpus.document_count, corpus.token_count, corpus.max_token_id) == (4, 13, 12)


def test_the_hash_sees_borders_and_not_how_the_tokens_are_stored():
    assert build_corpus([2, 3]).content_hash != build_corpus([3, 2]).content_hash
    assert build_corpus([2, 3]).content_hash == build_corpus([2, 3], piece_tokens=1).content_hash


def test_tokens_take_two_bytes_up_to_65536_ids():
    assert find_token_dtype(65_536) == np.uint16 and find_token_dtype(65_537) == np.uint32
