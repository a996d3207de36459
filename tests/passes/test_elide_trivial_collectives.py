"""elide_trivial_collectives: a group of one rank collectives nothing; other groups are left alone."""

import pytest
import torch

from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, ATEN, READ_SIZE, WAIT_TENSOR
from monograph.graph.query import group_of, is_launch
from monograph.graph.signature import InputKind
from monograph.parallel.mesh import Mesh
from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes, run_passes
from tests.kit.pipelines import capture_small
from tests.passes.written import BACKWARD, ByHand, check_text, run


def test_transfers_of_one_rank_are_their_own_argument_and_others_stay():
    hand = ByHand()
    w = hand.input("w", 4)
    alone = hand.call(WAIT_TENSOR, hand.call(ALL_GATHER, w, 1, "fsdp_gather"))
    loss = hand.call(ATEN.sum.default, alone)
    both = hand.call(WAIT_TENSOR, hand.call(ALL_REDUCE, w, "sum", "tp", direction=BACKWARD), direction=BACKWARD)
    graph = hand.done(
        loss,
        w=hand.call(
            WAIT_TENSOR, hand.call(ALL_REDUCE, both, "sum", "dp_replicate", direction=BACKWARD), direction=BACKWARD
        ),
    )
    sizes = {"fsdp_gather": 1, "dp_replicate": 1, "tp": 2}
    assert run("elide_trivial_collectives", graph, group_sizes=sizes) == "2 collectives removed"
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


def test_a_size_read_from_a_trivial_collective_is_read_from_its_argument():
    hand = ByHand()
    x = hand.input("x", 4, 2)
    sent = hand.call(ALL_TO_ALL, x, [4], [4], "ep")
    size = hand.call(ATEN.sym_size.int, sent, 0)
    rows = hand.call(ATEN.view.default, hand.call(WAIT_TENSOR, sent), [size, 2])
    graph = hand.done(hand.call(ATEN.sum.default, rows))
    assert run("elide_trivial_collectives", graph, group_sizes={"ep": 1}) == "1 collective removed"
    check_text(
        graph,
        """
        forward:
          0: value = sym_size.int(%x, 0)
          1: float32[4, 2] = view(%x, [f.0, 2])
          2: float32[] = sum(f.1)
        backward:
          return f.2
        """,
    )


def test_an_all_to_all_whose_result_has_a_size_read_from_data_stays():
    hand = ByHand()
    x = hand.input("x", 4, 2)
    count = hand.input("count", kind=InputKind.BATCH, dtype=torch.int64)
    rows = hand.call(WAIT_TENSOR, hand.call(ALL_TO_ALL, x, [hand.call(READ_SIZE, count)], [4], "ep"))
    graph = hand.done(hand.call(ATEN.sum.default, rows))
    assert run("elide_trivial_collectives", graph, group_sizes={"ep": 1}) == "0 collectives removed"


@pytest.mark.parametrize(
    "degrees", [pytest.param({"tp": 2, "etp": 2}, marks=pytest.mark.long), {"dp_shard": 2, "ep": 2}], ids=str
)
def test_no_collective_of_a_captured_step_is_left_over_a_group_of_one_rank(degrees):
    graph, facts = capture_small("qwen3_moe", Mesh(**degrees), **{"model.n_layers": 1})
    run_passes(graph, build_passes(PassesConfig()), facts, is_measured=False)
    left = [node.name for node in graph.nodes if is_launch(node) and facts.group_sizes[group_of(node)] == 1]
    assert left == []
