"""remove_no_ops: views that change nothing go, views that change something stay."""

from monograph.compat.ops import ATEN
from monograph.graph.signature import InputKind
from tests.passes.written import BACKWARD, ByHand, check_text, run


def test_what_changes_nothing_is_skipped_by_its_readers():
    hand = ByHand()
    x, w = hand.input("x", 4, 4, kind=InputKind.BATCH), hand.input("w", 4, 4)
    twice = hand.call(ATEN.t.default, hand.call(ATEN.t.default, w))
    same = hand.call(ATEN.view.default, x, [4, 4])
    y = hand.call(ATEN.mm.default, same, hand.call(ATEN.detach.default, twice))
    graph = hand.done(hand.call(ATEN.sum.default, y), w=hand.call(ATEN.mm.default, x, y, direction=BACKWARD))
    assert run("remove_no_ops", graph) == "3 nodes removed"
    check_text(
        graph,
        """
        forward:
          0: float32[4, 4] = t(%w)
          1: float32[4, 4] = mm(%x, %w)
          2: float32[] = sum(f.1)
        backward:
          0: float32[4, 4] = mm(%x, f.1)
        backward:
          return f.2, b.0
        """,
    )


def test_views_that_change_something_and_values_that_are_returned_stay():
    hand = ByHand()
    w = hand.input("w", 4, 4)
    flat = hand.call(ATEN.view.default, w, [2, 8])
    part = hand.call(ATEN.slice.Tensor, flat, 0, 0, 1)
    turned = hand.call(ATEN.t.default, part)
    loss = hand.call(ATEN.sum.default, turned)
    graph = hand.done(hand.call(ATEN.detach.default, loss), w=hand.call(ATEN.mul.Tensor, w, 2, direction=BACKWARD))
    before = graph.text()
    assert run("remove_no_ops", graph) == "0 nodes removed"
    assert graph.text() == before
