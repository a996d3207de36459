"""fuse_swiglu_epilogue: a matmul and the gate of its result become one op; so do a matmul and a gate's backward."""

import operator
from collections import Counter

import pytest

from monograph.compat.ops import ATEN
from monograph.errors import ConfigError
from monograph.graph.cost import measure
from monograph.graph.edit import call_after
from monograph.graph.tags import tag_of
from monograph.kernels.matmul_swiglu import MATMUL_SWIGLU, MATMUL_SWIGLU_BACKWARD
from monograph.kernels.swiglu import SWIGLU, SWIGLU_BACKWARD_PACKED_RECOMPUTE
from monograph.parallel.mesh import Mesh
from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes, run_passes
from tests.execute.updates import differences, make_updates, one_rank, small
from tests.kit.pipelines import capture_small
from tests.passes.written import BACKWARD, ByHand, check_text, run

FUSED = {
    "model.kernels": "fused",
    "training.compute_dtype": "bfloat16",
    "model.n_layers": 2,
    "activation_checkpoint.mode": "min_cut",
}
JOINED = PassesConfig(on=("merge_matmuls",))
ASKED = JOINED.replace(on=("merge_matmuls", "fuse_swiglu_epilogue"))
GATED = (SWIGLU, SWIGLU_BACKWARD_PACKED_RECOMPUTE, MATMUL_SWIGLU, MATMUL_SWIGLU_BACKWARD)


def count(model, passes, mesh=Mesh(), **changes):  # noqa: B008 - a mesh never changes
    """How often each op that has to do with gates is in a step after all passes, and the step's cost."""
    graph, facts = capture_small(model, mesh, **{**FUSED, **changes})
    run_passes(graph, build_passes(passes), facts, is_measured=False)
    ops = Counter(node.target for node in graph.nodes)
    return [ops[op] for op in GATED], measure(graph, facts)


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(dp_shard=2)], ids=["one device", "weights gathered in buckets"])
def test_gates_of_a_dense_model_are_computed_by_matmuls(mesh):
    apart, before = count("llama3", JOINED, mesh)
    fused, after = count("llama3", ASKED, mesh)
    assert (apart, fused) == ([2, 2, 0, 0], [0, 0, 2, 2])
    assert before.flops == after.flops > 0
    assert after.peak_bytes <= before.peak_bytes


def test_gates_of_routed_experts_stay_apart():
    """Their matmuls are grouped; those of a dense layer and of shared experts are not."""
    (gates, *others), _ = count("deepseek_v3", JOINED)
    assert others == [2, 0, 0] and gates > 2
    assert count("deepseek_v3", ASKED)[0] == [gates - 2, 0, 2, 2]


@pytest.mark.parametrize("model", ["llama3", pytest.param("deepseek_v3", marks=pytest.mark.long)])
def test_on_a_cpu_every_bit_stays(model, tmp_path):
    """Both are computed by the same ops there."""
    made = {}
    for is_fused in (False, True):
        on = ("merge_matmuls", "fuse_swiglu_epilogue") if is_fused else ("merge_matmuls",)
        changes = {"compile.mode": "graph", "parallelism.fsdp": "graph", **FUSED}
        changes |= {"passes.on": on}
        config = small(model, tmp_path, changes)
        with one_rank(config) as groups:
            made[is_fused] = make_updates(config, groups)
    assert differences(made[False], made[True]) == []


def make_gated(*, has_third=False, is_swapped=False, is_turned=True, is_read=False):
    """x @ w.T with the gate of its halves; and backward, with a matmul that may have another reader."""
    hand = ByHand()
    sizes = [3, 3, 2] if has_third else [3, 3]
    x, w = hand.input("x", 4, 5), hand.input("w", sum(sizes), 5) if is_turned else hand.input("w", 5, 6)
    grad, v = hand.input("grad", 4, 5), hand.input("v", 5, 3)
    path, inside = {"path": "layers.0"}, {"path": "layers.0.up"}
    matmul = hand.call(ATEN.mm.default, x, hand.call(ATEN.t.default, w, **inside) if is_turned else w, **inside)
    split = hand.call(ATEN.split_with_sizes.default, matmul, sizes, 1, **inside)
    halves = [hand.call(operator.getitem, split, index, **inside) for index in ((1, 0) if is_swapped else (0, 1))]
    loss = hand.call(ATEN.sum.default, hand.call(SWIGLU, *halves, **path))
    back = {**path, "direction": BACKWARD}
    of_gate = hand.call(ATEN.mm.default, grad, v, **back)
    pair = hand.call(SWIGLU_BACKWARD_PACKED_RECOMPUTE, of_gate, *halves, **back)
    both, again = (hand.call(operator.getitem, pair, index, **back) for index in (0, 1))
    more = {"w": hand.call(ATEN.mul.Tensor, of_gate, 2.0, **back)} if is_read else {}
    return hand.done(loss, x=both, v=again, **more)


def test_what_it_writes():
    graph = make_gated()
    assert run("fuse_swiglu_epilogue", graph, ASKED) == "SwiGLU fused into 1 forward and 1 backward matmul"
    check_text(
        graph,
        """
        forward block 0:
          0: 2 values = monograph.matmul_swiglu(%x, %w)  # layers.* by fuse_swiglu_epilogue
          1: float32[4, 6] = getitem(f.0, 0)  # layers.*.up by fuse_swiglu_epilogue
          2: float32[4, 3] = getitem(f.0, 1)  # layers.* by fuse_swiglu_epilogue
          3: 2 values = split_with_sizes(f.1, [3, 3], 1)  # layers.*.up
          4: float32[4, 3] = getitem(f.3, 0)  # layers.*.up
          5: float32[4, 3] = getitem(f.3, 1)  # layers.*.up
          6: float32[4, 3] = view(f.2, [4, 3])  # layers.* by fuse_swiglu_epilogue
        forward:
          0: float32[] = sum(f0.6)
        backward block 0:
          0: 2 values = monograph.matmul_swiglu_backward(%grad, %v, f.4, f.5)  # layers.* by fuse_swiglu_epilogue
          1: float32[4, 6] = getitem(b.0, 0)  # layers.*
          2: float32[4, 3] = getitem(b.0, 1)  # layers.*
          3: float32[4, 6] = view(b.1, [4, 6])  # layers.* by fuse_swiglu_epilogue
          4: float32[4, 3] = view(b.2, [4, 3])  # layers.* by fuse_swiglu_epilogue
        backward:
          return f.0, b0.3, b0.4
        """,
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"is_swapped": True}, "SwiGLU fused into 0 forward and 1 backward matmul"),
        ({"is_turned": False}, "SwiGLU fused into 0 forward and 1 backward matmul"),
        ({"is_read": True}, "SwiGLU fused into 1 forward and 0 backward matmuls"),
        ({"has_third": True}, "SwiGLU fused into 0 forward and 1 backward matmul"),
    ],
    ids=str,
)
def test_what_is_something_else_stays_apart(change, said):
    assert run("fuse_swiglu_epilogue", make_gated(**change), ASKED) == said


def test_a_matmul_is_computed_once_for_two_gates():
    hand = ByHand()
    x, w = hand.input("x", 4, 5), hand.input("w", 6, 5)
    matmul = hand.call(ATEN.mm.default, x, hand.call(ATEN.t.default, w))
    split = hand.call(ATEN.split_with_sizes.default, matmul, [3, 3], 1)
    halves = [hand.call(operator.getitem, split, index) for index in (0, 1)]
    gates = [hand.call(SWIGLU, *halves) for _ in range(2)]
    graph = hand.done(hand.call(ATEN.sum.default, hand.call(ATEN.add.Tensor, *gates)), x=x)
    assert run("fuse_swiglu_epilogue", graph, ASKED).startswith("SwiGLU fused into 1 forward")
    ops = Counter(node.target for node in graph.nodes)
    assert (ops[MATMUL_SWIGLU], ops[ATEN.mm.default], ops[SWIGLU]) == (1, 0, 1)


def test_rows_that_are_cut_otherwise_stay_apart():
    """Gradients that lie side by side in narrower rows do not lie side by side in the matmul's."""
    hand = ByHand()
    grad, v = hand.input("grad", 4, 5), hand.input("v", 5, 6)
    x, up = hand.input("x", 4, 2, 3), hand.input("up", 4, 2, 3)
    back = {"path": "layers.0", "direction": BACKWARD}
    of_gate = hand.call(ATEN.view.default, hand.call(ATEN.mm.default, grad, v, **back), [4, 2, 3], **back)
    pair = hand.call(SWIGLU_BACKWARD_PACKED_RECOMPUTE, of_gate, x, up, **back)
    both, again = (hand.call(operator.getitem, pair, index, **back) for index in (0, 1))
    graph = hand.done(hand.call(ATEN.sum.default, hand.call(SWIGLU, x, up)), x=both, up=again)
    assert run("fuse_swiglu_epilogue", graph, ASKED).endswith("0 backward matmuls")


def test_nothing_moves_past_what_writes():
    graph = make_gated()
    matmul = next(node for node in graph.nodes if node.target is ATEN.mm.default)
    call_after(graph.module.graph, matmul, ATEN.mul_.Tensor, (matmul, 2.0), tag_of(matmul))
    assert run("fuse_swiglu_epilogue", graph, ASKED).startswith("SwiGLU fused into 0 forward")


def test_matmuls_that_are_not_merged_are_an_error():
    alone = PassesConfig(on=("fuse_swiglu_epilogue",))
    with pytest.raises(ConfigError, match=r"(?s)it needs merge_matmuls, which is off.*--passes.on merge_matmuls"):
        alone.check_asked("exact")
    alone.check_asked("fast")
