"""recompute: what was not kept is computed where backward first needs it, once, from what was kept."""

from monograph.annotate import Direction
from monograph.compat.ops import ATEN, READ_SIZE
from monograph.graph.query import is_size
from monograph.graph.tags import tag_of
from monograph.parallel.mesh import Mesh
from tests.kit.pipelines import capture_small, make_pass
from tests.passes.written import BACKWARD, ByHand, check_text, run


def test_a_value_lives_again_just_before_backward_reads_it():
    hand = ByHand()
    x, w = hand.input("x", 4, 4), hand.input("w", 4, 4)
    matmul = hand.call(ATEN.mm.default, x, w, path="layers.0.ffn")
    active = hand.call(ATEN.silu.default, matmul, path="layers.0.ffn")
    loss = hand.call(ATEN.sum.default, active, path="layers.0")
    early = hand.call(ATEN.mul.Tensor, matmul, 2, path="layers.0.ffn", direction=BACKWARD)
    back = hand.call(ATEN.mm.default, active, early, path="layers.0.ffn", direction=BACKWARD)
    graph = hand.done(loss, w=hand.call(ATEN.mul.Tensor, back, active, path="layers.0.ffn", direction=BACKWARD))
    run("choose_saved", graph)
    assert run("recompute", graph) == "1 node recomputed in backward, 0 dropped from forward"
    check_text(
        graph,
        """
        forward block 0:
          0: float32[4, 4] = mm(%x, %w)  # layers.*.ffn saved
          1: float32[4, 4] = silu(f.0)  # layers.*.ffn
          2: float32[] = sum(f.1)  # layers.*
        backward block 0:
          0: float32[4, 4] = mul.Tensor(f.0, 2)  # layers.*.ffn
          1: float32[4, 4] = silu(f.0)  # layers.*.ffn by recompute
          2: float32[4, 4] = mm(b.1, b.0)  # layers.*.ffn
          3: float32[4, 4] = mul.Tensor(b.2, b.1)  # layers.*.ffn
        backward:
          return f0.2, b0.3
        """,
    )


def test_sizes_and_counters_are_never_computed_twice():
    graph, facts = capture_small("deepseek_v3", Mesh(dp_shard=2, ep=2), **{"activation_checkpoint.mode": "full"})
    make_pass("remove_dead_code").run(graph, facts)
    reads = sum(node.target is READ_SIZE for node in graph.nodes)
    assert reads
    for name in ("choose_saved", "recompute"):
        make_pass(name).run(graph, facts)
    copies = [node for node in graph.nodes if tag_of(node).made_by == "recompute"]
    assert copies and all(tag_of(node).direction is Direction.BACKWARD for node in copies)
    assert sum(node.target is READ_SIZE for node in graph.nodes) == reads
    assert not any(is_size(node) for node in copies)
