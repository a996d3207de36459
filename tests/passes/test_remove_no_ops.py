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


def make_matmul_with_one():
    """A loss that computes its gradient in forward, times the gradient that backward begins with."""
    hand = ByHand()
    x, w = hand.input("x", 4, 4, kind=InputKind.BATCH), hand.input("w", 4, 4)
    loss = hand.call(ATEN.sum.default, hand.call(ATEN.mm.default, x, w))
    one = hand.call(ATEN.ones_like.default, loss, direction=BACKWARD)
    twice = hand.call(ATEN.mul.Tensor, one, one, direction=BACKWARD)
    early = hand.call(ATEN.mm.default, x, x)
    grad = hand.call(ATEN.mul.Tensor, early, twice, direction=BACKWARD)
    return hand.done(loss, w=hand.call(ATEN.mul.Tensor, grad, 3, direction=BACKWARD))


def test_a_matmul_with_one_is_its_other_factor_and_backward_stays_backward():
    graph = make_matmul_with_one()
    assert run("remove_no_ops", graph) == "2 nodes removed"
    check_text(
        graph,
        """
        forward:
          0: float32[4, 4] = mm(%x, %w)
          1: float32[] = sum(f.0)
        backward:
          0: float32[] = ones_like(f.1)
        forward:
          2: float32[4, 4] = mm(%x, %x)
        backward:
          1: float32[4, 4] = alias(f.2)  # by remove_no_ops
          2: float32[4, 4] = mul.Tensor(b.1, 3)
          return f.1, b.2
        """,
    )
    assert run("remove_no_ops", graph) == "0 nodes removed", "the alias stays"


def test_whatever_reads_such_a_matmul_through_a_view_reads_the_alias():
    hand = ByHand()
    x = hand.input("x", 4, 4)
    early = hand.call(ATEN.mm.default, x, x)
    loss = hand.call(ATEN.sum.default, early)
    one = hand.call(ATEN.ones_like.default, loss, direction=BACKWARD)
    same = hand.call(
        ATEN.detach.default, hand.call(ATEN.mul.Tensor, early, one, direction=BACKWARD), direction=BACKWARD
    )
    graph = hand.done(loss, x=hand.call(ATEN.neg.default, same, direction=BACKWARD))
    assert run("remove_no_ops", graph) == "2 nodes removed"
    assert "alias(f.0)" in graph.text()
    assert "neg(b.1)" in graph.text()
