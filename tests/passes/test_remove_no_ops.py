"""remove_no_ops: views that change nothing go, views that change something stay."""

import torch

from monograph.compat.ops import ATEN
from monograph.graph.query import find_storages
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


def test_a_cast_to_a_wider_dtype_and_back_is_gone_also_where_it_is_returned():
    hand = ByHand()
    w, v = hand.input("w", 4, 4, dtype=torch.bfloat16), hand.input("v", 4, 4, dtype=torch.bfloat16)
    y = hand.call(ATEN.mm.default, w, v)
    loss = hand.call(ATEN.sum.default, y)

    def cast(x, *dtypes):
        for dtype in dtypes:
            x = hand.call(ATEN._to_copy.default, x, dtype=dtype, direction=BACKWARD)
        return x

    grad = hand.call(ATEN.mm.default, y, v, direction=BACKWARD)
    narrowed = cast(hand.call(ATEN.mm.default, v, y, direction=BACKWARD), torch.float16, torch.bfloat16)
    graph = hand.done(loss, w=cast(grad, torch.float32, torch.bfloat16), v=narrowed)
    run("remove_no_ops", graph)
    run("remove_dead_code", graph)
    check_text(
        graph,
        """
        forward:
          0: bfloat16[4, 4] = mm(%w, %v)
          1: bfloat16[] = sum(f.0)
        backward:
          0: bfloat16[4, 4] = mm(f.0, %v)
          1: bfloat16[4, 4] = mm(%v, f.0)
          2: float16[4, 4] = _to_copy(b.1, dtype=float16)
          3: bfloat16[4, 4] = _to_copy(b.2, dtype=bfloat16)
          return f.1, b.0, b.3
        """,
    )


def test_two_gradients_and_inputs_never_share_memory_after_it():
    hand = ByHand()
    w, v = hand.input("w", 4, 4, dtype=torch.bfloat16), hand.input("v", 4, 4, dtype=torch.bfloat16)
    loss = hand.call(ATEN.sum.default, hand.call(ATEN.mm.default, w, v))
    grad = hand.call(ATEN.mm.default, w, v, direction=BACKWARD)
    wide = [
        hand.call(ATEN._to_copy.default, each, dtype=torch.float32, direction=BACKWARD)
        for each in (grad, grad, hand.call(ATEN.view.default, w, [16], direction=BACKWARD))
    ]
    back = [hand.call(ATEN._to_copy.default, each, dtype=torch.bfloat16, direction=BACKWARD) for each in wide]
    graph = hand.done(loss, w=back[0], v=back[1], u=back[2])
    run("remove_no_ops", graph)
    owners = find_storages(graph.module.graph)
    found = [owners[node] for node in graph.results[1:]]
    assert len(set(found)) == 3, "each gradient has memory of its own"
    assert all(node.op == "call_function" for node in found), "no gradient is an input"
