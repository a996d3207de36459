"""fuse_kernels: ops of ours that read the same memory become one, and no bit changes."""

import itertools
import operator
from collections import Counter

import pytest

from monograph.compat.ops import ATEN
from monograph.graph.edit import call_after
from monograph.graph.tags import tag_of
from monograph.kernels.norm import ADD_NORM, NORM, NORM_BACKWARD, NORM_BACKWARD_RECOMPUTE
from monograph.kernels.rope import ROPE, ROPE_PACKED
from monograph.kernels.swiglu import (
    SWIGLU,
    SWIGLU_BACKWARD,
    SWIGLU_BACKWARD_PACKED_RECOMPUTE,
    SWIGLU_BACKWARD_RECOMPUTE,
)
from monograph.kernels.wide import ADD_WIDE
from monograph.parallel.mesh import Mesh
from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes, run_passes
from tests.execute.updates import differences, make_updates, one_rank, small
from tests.kit.pipelines import capture_small
from tests.passes.written import BACKWARD, ByHand, check_text, run

BF16 = {"training.compute_dtype": "bfloat16"}
FUSED = {"model.kernels": "fused", **BF16}
GRAPH = {"compile.mode": "graph", "parallelism.fsdp": "graph"}
BLOCKS = 2
NONE = Mesh()
JOINED = ("merge_matmuls",)


def count_ops(model, passes, mesh=NONE, **changes):
    """How often each op is in the step after all passes, and what fuse_kernels said."""
    graph, facts = capture_small(model, mesh, **{**FUSED, "model.n_layers": BLOCKS, **changes})
    records = run_passes(graph, build_passes(passes), facts, is_measured=False)
    (record,) = [record for record in records if record.name == "fuse_kernels"]
    return Counter(node.target for node in graph.nodes), record


def test_norms_gates_and_sums_of_a_dense_model_become_one_kernel_each():
    ops, _ = count_ops("llama3", PassesConfig())
    # Two norms a block and one in the head; the first has no sum before it, the last is not recomputed.
    assert (ops[NORM], ops[ADD_NORM]) == (1, 2 * BLOCKS)
    assert (ops[NORM_BACKWARD], ops[NORM_BACKWARD_RECOMPUTE]) == (1, 2 * BLOCKS)
    assert (ops[SWIGLU], ops[SWIGLU_BACKWARD], ops[SWIGLU_BACKWARD_RECOMPUTE]) == (BLOCKS, 0, BLOCKS)


@pytest.mark.parametrize("mesh", [NONE, Mesh(dp_shard=2)], ids=["one device", "weights gathered in buckets"])
def test_gradients_of_joined_projections_are_written_side_by_side(mesh):
    ops, _ = count_ops("llama3", PassesConfig(on=JOINED), mesh, **{"activation_checkpoint.mode": "min_cut"})
    assert (ops[SWIGLU_BACKWARD_RECOMPUTE], ops[SWIGLU_BACKWARD_PACKED_RECOMPUTE]) == (0, BLOCKS)
    assert (ops[ROPE], ops[ROPE_PACKED]) == (2 * BLOCKS, BLOCKS), "queries and keys; both gradients beside the values'"
    if mesh is NONE:
        assert ops[ATEN.cat.default] == 4 * BLOCKS, "weights, in forward and in backward"


def test_gradients_of_a_tied_embedding_are_added_without_casts():
    ops, record = count_ops("llama3", PassesConfig(), **{"model.tied_embeddings": True})
    assert ops[ADD_WIDE] == 1
    assert record.note.endswith("1 cast into adds")


def test_a_step_without_ops_of_ours_stays_without():
    graph, facts = capture_small("llama3", Mesh(), **BF16)
    before = graph.text()
    records = run_passes(graph, build_passes(PassesConfig()), facts, is_measured=False)
    assert [record.note for record in records if record.name == "fuse_kernels"] == ["no custom ops to fuse"]
    assert "monograph." not in graph.text().replace("monograph.attention", "")
    assert before != graph.text(), "other passes did run"


def test_equal_blocks_still_read_alike():
    lines = []
    for blocks in (3, 4):
        graph, facts = capture_small("llama3", Mesh(), **{**FUSED, "model.n_layers": blocks})
        run_passes(graph, build_passes(PassesConfig()), facts, is_measured=False)
        lines.append(len(graph.text().splitlines()))
    assert lines[0] == lines[1], "whatever is fused across a boundary belongs to one block"


@pytest.mark.parametrize(
    ("mode", "is_joined"),
    [
        ("min_cut", True),
        *(
            pytest.param(mode, is_joined, marks=pytest.mark.long)
            for mode, is_joined in itertools.product(("none", "selective", "min_cut", "full"), (False, True))
            if (mode, is_joined) != ("min_cut", True)
        ),
    ],
)
def test_every_bit_stays(mode, is_joined, tmp_path):
    joined = {"passes.on": JOINED} if is_joined else {}
    made = {}
    for name, off in (("fused", ()), ("apart", ("fuse_kernels",))):
        changes = {**GRAPH, **FUSED, **joined, "activation_checkpoint.mode": mode, "model.n_layers": BLOCKS}
        changes |= {"passes.off": off, "model.tied_embeddings": True}
        config = small("llama3", tmp_path, changes)
        with one_rank(config) as groups:
            made[name] = make_updates(config, groups)
    assert differences(made["apart"], made["fused"]) == []


def make_gated(*, has_transfer=False):
    """A gate that backward recomputes, read by a matmul before the gate's own backward."""
    hand = ByHand()
    x, up, grad, w = (hand.input(name, 4, 4) for name in ("x", "up", "grad", "w"))
    loss = hand.call(ATEN.sum.default, hand.call(SWIGLU, x, up, path="layers.0"))
    back = {"path": "layers.0", "direction": BACKWARD}
    again = hand.call(SWIGLU, x, up, **back)
    matmul = hand.call(ATEN.mm.default, again, grad, **back)
    first = hand.call(ATEN.mm.default, matmul, grad, **back) if has_transfer else grad
    pair = hand.call(SWIGLU_BACKWARD, first, x, up, **back)
    parts = [hand.call(operator.getitem, pair, index, **back) for index in (0, 1)]
    return hand.done(loss, x=parts[0], up=parts[1], grad=matmul, w=hand.call(ATEN.mm.default, w, grad, **back))


def test_what_reads_the_second_gate_moves_behind_the_backward():
    graph = make_gated()
    assert run("fuse_kernels", graph).startswith("1 recomputation into")
    check_text(
        graph,
        """
        forward block 0:
          0: float32[4, 4] = monograph.swiglu(%x, %up)  # layers.*
        forward:
          0: float32[] = sum(f0.0)
        backward block 0:
          0: 3 values = monograph.swiglu_backward_recompute(%grad, %x, %up)  # layers.* by fuse_kernels
          1: float32[4, 4] = getitem(b.0, 0)  # layers.*
          2: float32[4, 4] = getitem(b.0, 1)  # layers.*
          3: float32[4, 4] = getitem(b.0, 2)  # layers.* by fuse_kernels
          4: float32[4, 4] = mm(b.3, %grad)  # layers.*
          5: float32[4, 4] = mm(%w, %grad)  # layers.*
        backward:
          return f.0, b0.1, b0.2, b0.4, b0.5
        """,
    )


def test_a_backward_that_needs_the_second_gate_stays_apart():
    graph = make_gated(has_transfer=True)
    assert run("fuse_kernels", graph) == "nothing to fuse"
    assert Counter(node.target for node in graph.nodes)[SWIGLU] == 2


@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_a_norm_with_another_eps_is_another_norm(eps):
    hand = ByHand()
    x, w, grad = hand.input("x", 4, 4), hand.input("w", 4), hand.input("grad", 4, 4)
    back = {"path": "layers.0", "direction": BACKWARD}
    out, scale = (hand.call(operator.getitem, hand.call(NORM, x, w, 1e-5), index) for index in (0, 1))
    again = hand.call(operator.getitem, hand.call(NORM, x, w, eps, **back), 0, **back)
    pair = hand.call(NORM_BACKWARD, grad, x, w, scale, None, **back)
    of_x, of_w = (hand.call(operator.getitem, pair, index, **back) for index in (0, 1))
    matmul = hand.call(ATEN.mm.default, again, grad, **back)
    graph = hand.done(hand.call(ATEN.sum.default, out), x=of_x, w=of_w, grad=matmul)
    assert ("1 recomputation into" in run("fuse_kernels", graph)) == (eps == 1e-5)


def test_nothing_moves_past_what_writes():
    graph = make_gated()
    (again,) = [node for node in graph.nodes if node.target is SWIGLU and tag_of(node).direction is BACKWARD]
    grad = next(node for node, spec in zip(graph.placeholders, graph.inputs, strict=True) if spec.name == "grad")
    call_after(graph.module.graph, again, ATEN.mul_.Tensor, (grad, 2.0), tag_of(again))
    assert run("fuse_kernels", graph) == "nothing to fuse"


def test_a_gradient_that_is_put_there_twice_stays_apart():
    hand = ByHand()
    x, up, grad = (hand.input(name, 4, 4) for name in ("x", "up", "grad"))
    back = {"path": "layers.0", "direction": BACKWARD}
    pair = hand.call(SWIGLU_BACKWARD, grad, x, up, **back)
    one, other = (hand.call(operator.getitem, pair, index, **back) for index in (0, 1))
    three = hand.call(ATEN.cat.default, [one, other, one], 1, **back)
    graph = hand.done(
        hand.call(ATEN.sum.default, hand.call(SWIGLU, x, up)), x=hand.call(ATEN.mm.default, grad, three, **back)
    )
    assert run("fuse_kernels", graph) == "nothing to fuse"
