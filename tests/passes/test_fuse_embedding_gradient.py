"""fuse_embedding_gradient: rows are added where the head's gradient lies; nothing else is touched."""

import operator

import pytest
import torch

from monograph.compat.ops import ATEN
from monograph.graph.pieces import find_in_place
from monograph.graph.signature import InputKind
from monograph.kernels.norm import NORM
from monograph.kernels.wide import ADD_WIDE
from monograph.run import build_step
from monograph.train.update import add_gradients
from tests.execute.updates import one_rank, read_batches
from tests.kit.tiny import tiny
from tests.passes.written import BACKWARD, ByHand, check_text, run

BF16 = torch.bfloat16
NAME = "fuse_embedding_gradient"


def write_tied(*, cast=True, padding=-1, scaled=False, reader="", kernels=True):
    """The two gradients of a tied weight, and their sum."""
    hand = ByHand()
    hidden = hand.input("hidden", 6, 8, kind=InputKind.BATCH, dtype=BF16)
    logits = hand.input("logits", 6, 20, kind=InputKind.BATCH, dtype=BF16)
    ids = hand.input("ids", 2, 3, kind=InputKind.BATCH, dtype=torch.int64)
    scale = hand.input("scale", 8, dtype=BF16)
    normed = hand.call(operator.getitem, hand.call(NORM, hidden, scale, 1e-5), 0) if kernels else hidden
    loss = hand.call(ATEN.sum.default, normed)

    def back(op, *args, **kwargs):
        return hand.call(op, *args, direction=BACKWARD, **kwargs)

    of_head = back(ATEN.mm.default, back(ATEN.t.default, logits), hidden)
    grad = back(ATEN.view.default, hidden, [2, 3, 8])
    rows = back(ATEN.embedding_dense_backward.default, grad, ids, 20, padding, scaled, path="embedding")
    wide = [back(ATEN._to_copy.default, each, dtype=torch.float32) if cast else each for each in (of_head, rows)]
    more = {"rows": rows, "head": of_head, "cast": wide[0]}
    others = {"other": back(ATEN.neg.default, more[reader])} if reader else {}
    return hand.done(loss, weight=back(ATEN.add.Tensor, *wide), **others)


def test_a_gradient_is_added_row_by_row_and_leaves_the_step_as_narrow_as_it_was_computed():
    graph = write_tied()
    assert run(NAME, graph, is_single_pass=True) == "1 embedding gradient accumulated row by row"
    check_text(
        graph,
        """
        forward:
          0: 2 values = monograph.norm(%hidden, %scale, 1e-05)
          1: bfloat16[6, 8] = getitem(f.0, 0)
          2: bfloat16[] = sum(f.1)
        backward:
          0: bfloat16[20, 6] = t(%logits)
          1: bfloat16[20, 8] = mm(b.0, %hidden)
          2: bfloat16[2, 3, 8] = view(%hidden, [2, 3, 8])
          3: bfloat16[20, 8] = monograph.add_embedding_rows(b.1, b.2, %ids)  # embedding by fuse_embedding_gradient
          return f.2, b.3
        """,
    )


@pytest.mark.parametrize(
    ("case", "facts"), [({}, {"is_single_pass": False}), ({"reader": "cast"}, {"is_single_pass": True})], ids=str
)
def test_a_wide_gradient_stays_wide_where_it_has_to_be(case, facts):
    graph = write_tied(**case)
    run(NAME, graph, **facts)
    assert "float32[20, 8] = monograph.add_embedding_rows(" in graph.text()


@pytest.mark.parametrize("case", [{"padding": 3}, {"scaled": True}, {"reader": "rows"}, {"kernels": False}], ids=str)
def test_what_is_more_than_rows_to_add_stays(case):
    graph = write_tied(**case)
    before = graph.text()
    run(NAME, graph, is_single_pass=True)
    assert graph.text() == before


def test_a_graph_for_evaluation_has_nothing_to_add():
    hand = ByHand()
    hidden, scale = hand.input("hidden", 6, 8), hand.input("scale", 8)
    normed = hand.call(operator.getitem, hand.call(NORM, hidden, scale, 1e-5), 0)
    graph = hand.done(hand.call(ATEN.sum.default, normed))
    assert run(NAME, graph, is_single_pass=True) == "0 embedding gradients accumulated row by row"


@pytest.mark.parametrize("numbers", ["bfloat16", pytest.param("float32", marks=pytest.mark.long)])
def test_gradients_of_two_micro_batches_are_those_of_two_ops(tmp_path, numbers):
    """In fp32 to the last bits; in bf16 a sum is rounded once where torch rounds before it adds."""
    found = {}
    for off in ((), (NAME,)):
        changes = {"compile.mode": "graph", "compile.numerics": "fast", "model.kernels": "fused", "passes.off": off}
        changes |= {"training.compute_dtype": numbers, "model.n_layers": 1}
        config = tiny("qwen3", tmp_path, changes)
        with one_rank(config) as groups:
            step = build_step(config, groups)
            assert ("add_embedding_rows" in step.graph.text()) == (not off)
            assert len(find_in_place(step.graph.module.graph)) == (not off)
            add_gradients(step, read_batches(config, step, 2))
            found[off] = {name: value.grad.double() for name, value in step.parameters.items()}
            step.close()
    ours, theirs = found.values()
    assert list(ours) == list(theirs)
    for name, wanted in theirs.items():
        apart = float((ours[name] - wanted).norm() / wanted.norm())
        if "embedding" not in name:
            assert apart == 0.0
        else:
            assert 0.0 <= apart < (1e-6 if numbers == "float32" else 2**-8)


def test_the_op_of_a_sum_of_casts_is_not_needed():
    graph = write_tied()
    run(NAME, graph, is_single_pass=True)
    run("fuse_kernels", graph)
    assert not any(node.target is ADD_WIDE for node in graph.nodes)
