"""dedupe_all_gathers: a parameter that is read twice travels once; backward still gathers for itself."""

import torch

from monograph.annotate import Role
from monograph.compat.ops import ALL_GATHER, ATEN, WAIT_TENSOR
from tests.passes.written import BACKWARD, ByHand, check_text, run

GATHERED = {"role": Role.PARAM_ALL_GATHER, "slot": "w"}


def gather(hand, w, **where):
    cast = hand.call(ATEN._to_copy.default, w, dtype=torch.bfloat16, **GATHERED, **where)
    return hand.call(
        WAIT_TENSOR, hand.call(ALL_GATHER, cast, 2, "fsdp_gather", **GATHERED, **where), **GATHERED, **where
    )


def test_equal_gathers_of_one_half_become_one():
    hand = ByHand()
    w = hand.input("w", 4)
    one, other = gather(hand, w), gather(hand, w)
    loss = hand.call(ATEN.sum.default, hand.call(ATEN.mul.Tensor, one, other))
    again = hand.call(ATEN.mul.Tensor, gather(hand, w, direction=BACKWARD), 2, direction=BACKWARD)
    graph = hand.done(loss, w=hand.call(ATEN.slice.Tensor, again, 0, 0, 4, direction=BACKWARD))
    assert run("dedupe_all_gathers", graph) == "1 duplicate all_gather removed"
    check_text(
        graph,
        """
        forward:
          0: bfloat16[4] = _to_copy(%w, dtype=bfloat16)  # param_all_gather w
          1: bfloat16[8] = all_gather_into_tensor(f.0, 2, fsdp_gather)  <<  # param_all_gather w
          2: bfloat16[8] = wait_tensor(f.1)  # param_all_gather w
          3: bfloat16[8] = mul.Tensor(f.2, f.2)
          4: bfloat16[] = sum(f.3)
        backward:
          0: bfloat16[4] = _to_copy(%w, dtype=bfloat16)  # param_all_gather w
          1: bfloat16[8] = all_gather_into_tensor(b.0, 2, fsdp_gather)  <<  # param_all_gather w
          2: bfloat16[8] = wait_tensor(b.1)  # param_all_gather w
          3: bfloat16[8] = mul.Tensor(b.2, 2)
          4: bfloat16[4] = slice.Tensor(b.3, 0, 0, 4)
          return f.4, b.4
        """,
    )
