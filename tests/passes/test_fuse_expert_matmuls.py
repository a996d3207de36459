"""fuse_expert_matmuls: grouped matmuls with their gate, sums of two, and further ones; the same bits on a CPU."""

import pytest
import torch

from monograph.compat.ops import ATEN
from monograph.graph.signature import InputKind
from monograph.kernels.swiglu import SWIGLU
from tests.execute.updates import differences, make_updates, one_rank, small
from tests.passes.written import BACKWARD, ByHand, check_text, run

BF16 = torch.bfloat16


def write_experts(*, reads_early=False, weights_differ=False):
    """An expert layer forward, and the gradient of its rows."""
    hand = ByHand()
    x = hand.input("x", 8, 8, kind=InputKind.BATCH, dtype=BF16)
    ends = hand.input("ends", 2, kind=InputKind.BATCH, dtype=torch.int32)
    w1 = hand.input("w1", 2, 16, 8, dtype=BF16)
    w2 = hand.input("w2", 2, 8, 16, dtype=BF16)
    w3 = hand.input("w3", 2, 8, 16, dtype=BF16) if weights_differ else hand.input("w3", 2, 16, 8, dtype=BF16)

    def matmul(rows, weight, *, turned=True, **tag):
        weight = hand.call(ATEN.transpose.int, weight, 1, 2, **tag) if turned else weight
        return hand.call(ATEN._grouped_mm.default, rows, weight, ends, **tag)

    a = matmul(x, w1)
    early = hand.call(ATEN.neg.default, a) if reads_early else None
    b = matmul(x, w3, turned=not weights_differ)
    y = matmul(hand.call(SWIGLU, a, b), w2)
    loss = hand.call(ATEN.sum.default, y)
    one = matmul(b, w3, turned=weights_differ, direction=BACKWARD)
    total = hand.call(ATEN.add.Tensor, one, matmul(a, w1, turned=False, direction=BACKWARD), direction=BACKWARD)
    return hand.done(loss, x=total, **({} if early is None else {"early": early}))


def test_a_gate_a_sum_and_what_is_left():
    graph = write_experts()
    assert run("fuse_expert_matmuls", graph) == "1 SwiGLU, 1 sum and 1 plain grouped matmuls fused"
    check_text(
        graph,
        """
        forward:
          0: 3 values = monograph.expert_swiglu(%x, %w1, %w3, %ends)  # by fuse_expert_matmuls
          1: bfloat16[8, 16] = getitem(f.0, 0)  # by fuse_expert_matmuls
          2: bfloat16[8, 16] = getitem(f.0, 1)  # by fuse_expert_matmuls
          3: bfloat16[8, 16] = getitem(f.0, 2)  # by fuse_expert_matmuls
          4: bfloat16[8, 8] = monograph.expert_matmul(f.3, %w2, %ends)  # by fuse_expert_matmuls
          5: bfloat16[] = sum(f.4)
        backward:
          0: bfloat16[8, 8] = monograph.expert_matmul_sum(f.2, %w3, f.1, %w1, %ends)  # by fuse_expert_matmuls
          return f.5, b.0
        """,
    )
    assert run("fuse_expert_matmuls", graph) == "0 SwiGLU, 0 sum and 0 plain grouped matmuls fused"


@pytest.mark.parametrize("case", ["reads_early", "weights_differ"])
def test_what_cannot_be_one_op_stays_apart(case):
    graph = write_experts(**{case: True})
    assert run("fuse_expert_matmuls", graph).startswith("0 SwiGLU")
    assert "expert_swiglu" not in graph.text()


def test_updates_have_the_bits_of_torchs_grouped_matmuls_on_a_cpu(tmp_path):
    made = []
    for off in ((), ("fuse_expert_matmuls",)):
        changes = {"compile.mode": "graph", "compile.numerics": "fast", "model.kernels": "fused", "passes.off": off}
        config = small("deepseek_v3", tmp_path, changes, experts="grouped")
        with one_rank(config) as groups:
            made.append(make_updates(config, groups, prepare=lambda step, off=off: check_fused(step, not off)))
    assert not differences(*made)


def check_fused(step, is_fused):
    """Whether the graph has ops of ours."""
    assert ("expert_matmul_sum" in step.graph.text()) == is_fused
