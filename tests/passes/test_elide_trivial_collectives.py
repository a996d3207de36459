"""elide_trivial_collectives: a group of one rank transfers nothing; other groups are left alone."""

from monograph.compat.ops import ATEN, GATHER, REDUCE, WAIT
from tests.passes.written import BACKWARD, ByHand, check_text, run


def test_transfers_of_one_rank_are_their_own_argument_and_others_stay():
    hand = ByHand()
    w = hand.input("w", 4)
    alone = hand.call(WAIT, hand.call(GATHER, w, 1, "fsdp_gather"))
    loss = hand.call(ATEN.sum.default, alone)
    both = hand.call(WAIT, hand.call(REDUCE, w, "sum", "tp", direction=BACKWARD), direction=BACKWARD)
    graph = hand.done(
        loss, w=hand.call(WAIT, hand.call(REDUCE, both, "sum", "dp_replicate", direction=BACKWARD), direction=BACKWARD)
    )
    sizes = {"fsdp_gather": 1, "dp_replicate": 1, "tp": 2}
    assert run("elide_trivial_collectives", graph, group_sizes=sizes) == "2 transfers removed"
    check_text(
        graph,
        """
        forward:
          0: float32[] = sum(%w)
        backward:
          0: float32[4] = all_reduce(%w, sum, tp)  <<
          1: float32[4] = wait_tensor(b.0)
          return f.0, b.1
        """,
    )
