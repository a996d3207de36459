"""remove_dead_code: what reaches no output goes, collectives included."""

from monograph.compat.ops import ALL_REDUCE, ATEN, WAIT_TENSOR
from tests.passes.written import BACKWARD, ByHand, check_text, run


def test_only_what_an_output_depends_on_is_left():
    hand = ByHand()
    w = hand.input("w", 4)
    unused = hand.call(WAIT_TENSOR, hand.call(ALL_REDUCE, hand.call(ATEN.mul.Tensor, w, 3), "sum", "tp"))
    hand.call(ATEN.add.Tensor, unused, 1)
    graph = hand.done(hand.call(ATEN.sum.default, w), w=hand.call(ATEN.mul.Tensor, w, 2, direction=BACKWARD))
    assert run("remove_dead_code", graph) == "4 nodes removed"
    check_text(
        graph,
        """
        forward:
          0: float32[] = sum(%w)
        backward:
          0: float32[4] = mul.Tensor(%w, 2)
          return f.0, b.0
        """,
    )
