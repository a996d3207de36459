"""merge_chunks: a concat of chunks that the next module splits again is removed."""

import operator

from monograph.compat.ops import ATEN
from monograph.graph.facts import Chunking, Facts
from monograph.graph.signature import InputKind
from monograph.passes.overlap.merge_chunks import MergeChunks
from tests.kit.by_hand import ByHand

BEFORE = """\
forward:
  0: float32[4, 2] = cat([%a, %b])
  1: 2 values = split.Tensor(f.0, 2)
  2: float32[2, 2] = getitem(f.1, 0)
  3: float32[2, 2] = getitem(f.1, 1)
  4: float32[2, 2] = mul.Tensor(f.2, f.3)
  5: float32[] = sum(f.4)
"""
AFTER = """\
forward:
  0: float32[2, 2] = mul.Tensor(%a, %b)
  1: float32[] = sum(f.0)
"""


def build(size=2, *, is_read=False):
    """Two values put together, cut into parts of a size, and multiplied."""
    hand = ByHand()
    a, b = (hand.input(name, 2, 2, kind=InputKind.BATCH) for name in "ab")
    whole = hand.call(ATEN.cat.default, [a, b])
    parts = hand.call(ATEN.split.Tensor, whole, size)
    first, second = (hand.call(operator.getitem, parts, index) for index in range(2))
    result = hand.call(ATEN.mul.Tensor, first, second)
    if is_read:
        result = hand.call(ATEN.add.Tensor, result, hand.call(ATEN.sum.default, whole))
    return hand.done(hand.call(ATEN.sum.default, result))


def test_parts_of_what_was_put_together_are_read_directly():
    graph = build()
    assert graph.text().startswith(BEFORE)
    MergeChunks().run(graph, Facts())
    assert graph.text().startswith(AFTER)


def test_other_parts_than_it_was_made_of_are_left_alone():
    graph = build(size=1)
    before = graph.text()
    MergeChunks().run(graph, Facts())
    assert graph.text() == before


def test_a_whole_that_others_read_stays():
    graph = build(is_read=True)
    MergeChunks().run(graph, Facts())
    targets = [node.target for node in graph.nodes]
    assert ATEN.cat.default in targets and ATEN.split.Tensor not in targets


def test_it_has_nothing_to_do_where_a_pass_cuts_the_step():
    assert "chunk_experts" in MergeChunks().skip(Facts(chunking=Chunking(is_captured=False, count=2, dim=0)))
    assert not MergeChunks().skip(Facts(chunking=Chunking(is_captured=True, count=2, dim=0)))
