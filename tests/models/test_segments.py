"""Tables of segments: every rank's queries see exactly the keys that the documents and the kind of attention say."""

import itertools

import numpy as np
import pytest
import torch

from monograph.errors import DataError
from monograph.kernels.attention_segments import build_mask, flatten_segments
from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.segments import build_segments
from monograph.models.sequence_part import WHOLE, SequencePart

LENGTH = 24
KINDS = [
    CAUSAL,
    AttentionKind("window", window=5),
    AttentionKind("chunked", chunk=7),
    AttentionKind("full", causal=False),
]
PARTS = [WHOLE, SequencePart(0, 2), SequencePart(1, 2), SequencePart(2, 3)]


def draw_documents(seed, batch=3):
    """Numbers of documents of random lengths, one token long among them."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(batch):
        cuts = np.sort(random.choice(np.arange(1, LENGTH), size=random.integers(0, 9), replace=False))
        rows.append(np.repeat(np.arange(len(cuts) + 1), np.diff([0, *cuts, LENGTH])))
    return torch.from_numpy(np.stack(rows))


def see_by_definition(documents, kind):
    """[batch, length, length], from what each word means."""
    seen = torch.zeros(documents.shape[0], LENGTH, LENGTH, dtype=torch.bool)
    for row, q, k in itertools.product(range(documents.shape[0]), range(LENGTH), range(LENGTH)):
        start = int((documents[row] == documents[row, q]).nonzero()[0])
        same = bool(documents[row, q] == documents[row, k])
        ordered = k <= q or not kind.causal
        near = not kind.window or k > q - kind.window
        together = not kind.chunk or (q - start) // kind.chunk == (k - start) // kind.chunk
        seen[row, q, k] = same and ordered and near and together
    return seen


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_table_says_what_documents_and_kind_say(kind, part):
    for seed in range(4):
        documents = draw_documents(seed)
        wanted = part.take(see_by_definition(documents, kind), 1)
        table = build_segments(documents, kind, part, batch=3, length=LENGTH)
        masks = [
            build_mask(each, stop - start, LENGTH, causal=kind.causal, window=kind.window)[:, 0]
            for each, (start, stop) in zip(table.unbind(1), part.bounds(LENGTH), strict=True)
        ]
        assert torch.equal(torch.cat(masks, 1), wanted)


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_all_tables_of_a_run_have_one_shape_and_cover_every_query_and_key(part):
    shapes = set()
    for seed in range(6):
        table = build_segments(draw_documents(seed), CAUSAL, part, batch=3, length=LENGTH)
        shapes.add((table.shape, table.dtype))
        for each, (start, stop) in zip(table.unbind(1), part.bounds(LENGTH), strict=True):
            queries, keys = flatten_segments(each, stop - start, LENGTH)
            assert queries[0] == keys[0] == 0 and queries[-1] == 3 * (stop - start) and keys[-1] == 3 * LENGTH
            assert (queries.diff() >= 0).all() and (keys.diff() >= 0).all()
            assert keys.dtype == torch.int32
    assert len(shapes) == 1


def test_a_kernel_that_needs_no_table_gets_none():
    sizes = {"batch": 2, "length": LENGTH}
    assert build_segments(None, CAUSAL, WHOLE, **sizes) is None
    assert build_segments(None, AttentionKind("full", causal=False), WHOLE, **sizes) is None
    assert build_segments(None, AttentionKind("window", window=5), WHOLE, **sizes) is not None
    assert build_segments(None, CAUSAL, SequencePart(0, 2), **sizes) is not None


def test_more_documents_than_there_is_room_for_are_an_error_with_the_setting():
    documents = torch.arange(LENGTH).expand(1, LENGTH) // 2
    build_segments(documents, CAUSAL, WHOLE, batch=1, length=LENGTH, max_documents=12)
    with pytest.raises(DataError, match="has 12 documents, more than the 11") as error:
        build_segments(documents, CAUSAL, WHOLE, batch=1, length=LENGTH, max_documents=11)
    assert error.value.do.endswith("--model.max_documents 24")


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_sequence_may_have_as_many_documents_as_tokens_unless_its_kernel_pays_for_room(kind, part):
    one_a_token = torch.arange(LENGTH).expand(1, LENGTH)
    table = build_segments(one_a_token, kind, part, batch=1, length=LENGTH)
    wanted = part.take(torch.eye(LENGTH, dtype=torch.bool)[None], 1)
    masks = [
        build_mask(each, stop - start, LENGTH, causal=kind.causal, window=kind.window)[:, 0]
        for each, (start, stop) in zip(table.unbind(1), part.bounds(LENGTH), strict=True)
    ]
    assert torch.equal(torch.cat(masks, 1), wanted)
    with pytest.raises(DataError, match="has 24 documents, more than the 16") as error:
        build_segments(one_a_token, kind, part, batch=1, length=LENGTH, pays_for_room=True)
    assert "--model.attention.kernel auto" in error.value.do


def test_the_parts_of_a_sequence_are_the_whole_and_cost_the_same():
    for count in (1, 2, 4):
        parts = [SequencePart(index, count) for index in range(count)]
        bounds = sorted(bound for part in parts for bound in part.bounds(LENGTH))
        assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])] and bounds[-1][1] == LENGTH
        seen = {sum(stop * (stop + 1) - start * (start + 1) for start, stop in part.bounds(LENGTH)) for part in parts}
        assert len(seen) == 1, "keys that the queries of a part see"
