"""merge_matmuls: matmuls with a common operand, and sums of matmuls, are computed as one."""

import pytest
import torch

from monograph.compat.ops import ATEN
from monograph.graph.memory import find_memory
from monograph.graph.tags import tag_of
from monograph.parallel.mesh import Mesh
from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes, run_passes
from monograph.run import build_step
from tests.execute.updates import normalizers_of, one_rank, read_batches, small
from tests.kit.pipelines import capture_small
from tests.passes.written import BACKWARD, ByHand, check_text, run

ASKED = PassesConfig(on=("merge_matmuls",))
JOINED = {"passes.on": ("merge_matmuls",)}


def test_shared_left_operands_sums_and_shared_right_operands_become_one_matmul_each():
    hand = ByHand()
    x, a, b = hand.input("x", 4, 3), hand.input("a", 2, 3), hand.input("b", 5, 3)
    paths = {"path": "layers.0.attention.wa"}, {"path": "layers.0.attention.wb"}
    outs = []
    for w, path in zip((a, b), paths, strict=True):
        same, turned = hand.call(ATEN.view.default, x, [4, 3], **path), hand.call(ATEN.t.default, w, **path)
        outs.append(hand.call(ATEN.mm.default, same, turned, **path))
    loss = hand.call(ATEN.add.Tensor, *(hand.call(ATEN.sum.default, out) for out in outs))
    backs = [{**path, "direction": BACKWARD} for path in paths]
    turned = [hand.call(ATEN.t.default, out, **path) for out, path in zip(outs, backs, strict=True)]
    wgrads = [hand.call(ATEN.mm.default, out, x, **path) for out, path in zip(turned, backs, strict=True)]
    dgrads = [hand.call(ATEN.mm.default, out, w, **path) for out, w, path in zip(outs, (a, b), backs, strict=True)]
    graph = hand.done(
        loss,
        x=hand.call(ATEN.add.Tensor, *dgrads, path="layers.0", direction=BACKWARD),
        a=wgrads[0],
        b=wgrads[1],
    )
    assert run("merge_matmuls", graph, config=ASKED) == "6 matmuls merged into 3"
    check_text(
        graph,
        """
        forward block 0:
          0: float32[4, 3] = view(%x, [4, 3])  # layers.*.attention.wa
          1: float32[7, 3] = cat([%a, %b], 0)  # layers.*.attention by merge_matmuls
          2: float32[3, 7] = t(f.1)  # layers.*.attention by merge_matmuls
          3: float32[4, 7] = mm(f.0, f.2)  # layers.*.attention by merge_matmuls
          4: 2 values = split_with_sizes(f.3, [2, 5], 1)  # layers.*.attention by merge_matmuls
          5: float32[4, 2] = getitem(f.4, 0)  # layers.*.attention.wa by merge_matmuls
          6: float32[4, 5] = getitem(f.4, 1)  # layers.*.attention.wb by merge_matmuls
          7: float32[4, 7] = cat([f.5, f.6], 1)  # layers.*.attention by merge_matmuls
        forward:
          0: float32[] = sum(f0.5)
          1: float32[] = sum(f0.6)
          2: float32[] = add.Tensor(f.0, f.1)
        backward block 0:
          0: float32[7, 4] = t(f.7)  # layers.*.attention by merge_matmuls
          1: float32[7, 3] = mm(b.0, %x)  # layers.*.attention by merge_matmuls
          2: 2 values = split_with_sizes(b.1, [2, 5], 0)  # layers.*.attention by merge_matmuls
          3: float32[2, 3] = getitem(b.2, 0)  # layers.*.attention.wa by merge_matmuls
          4: float32[5, 3] = getitem(b.2, 1)  # layers.*.attention.wb by merge_matmuls
          5: float32[7, 3] = cat([%a, %b], 0)  # layers.*.attention by merge_matmuls
          6: float32[4, 3] = mm(f.7, b.5)  # layers.*.attention by merge_matmuls
          7: float32[4, 3] = view(b.6, [4, 3])  # layers.*.attention by merge_matmuls
        backward:
          return f.2, b0.7, b0.3, b0.4
        """,
    )


@pytest.mark.long
def test_a_second_run_finds_nothing_more_to_join():
    graph, facts = capture_small("deepseek_v3", Mesh(dp_shard=2, ep=2))
    run_passes(graph, build_passes(PassesConfig()), facts, is_measured=False)
    before = count(graph)
    run("merge_matmuls", graph, config=ASKED)
    once = graph.text()
    assert count(graph) < before
    assert run("merge_matmuls", graph, config=ASKED) == "0 matmuls merged into 0"
    assert graph.text() == once


def count(graph):
    return sum(node.target is ATEN.mm.default for node in graph.nodes)


def test_what_backward_keeps_does_not_hold_on_to_what_it_does_not():
    changes = {"training.compute_dtype": "bfloat16", "activation_checkpoint.mode": "min_cut"}
    graph, facts = capture_small("llama3", Mesh(), **changes)
    before = find_memory(graph_after(graph, facts, ASKED, "merge_matmuls")).peak_bytes
    graph, facts = capture_small("llama3", Mesh(), **changes)
    run_passes(graph, build_passes(ASKED), facts, is_measured=False)
    copies = [
        node for node in graph.nodes if tag_of(node).made_by == "merge_matmuls" and node.target is ATEN.clone.default
    ]
    assert {tag_of(node).path.split(".", 2)[2] for node in copies} == {"attention.wv"}
    assert find_memory(graph).peak_bytes <= 1.02 * before


def graph_after(graph, facts, config, off):
    run_passes(graph, build_passes(config.replace(off=(off,))), facts, is_measured=False)
    return graph


def results_of(config):
    with one_rank(config) as groups:
        step = build_step(config, groups)
        (batch,) = read_batches(config, step, 1)
        loss = step(batch.tensors, normalizers_of(step, valid_tokens=7))
        return {"loss": loss} | {name: value.grad for name, value in step.parameters.items()}


@pytest.mark.parametrize(
    ("model", "mode"),
    [
        ("llama3", "full"),
        pytest.param("deepseek_v3", "min_cut", marks=pytest.mark.long),
        pytest.param("llama3", "min_cut", marks=pytest.mark.long),
        pytest.param("qwen3_moe", "full", marks=pytest.mark.long),
        pytest.param("qwen3_moe", "min_cut", marks=pytest.mark.long),
        pytest.param("deepseek_v3", "full", marks=pytest.mark.long),
    ],
)
def test_loss_and_gradients_are_the_same_within_rounding(model, mode, tmp_path):
    changes = {"compile.mode": "graph", "activation_checkpoint.mode": mode}
    wanted = results_of(small(model, tmp_path, changes))
    found = results_of(small(model, tmp_path, {**changes, **JOINED}))
    largest = max(value.abs().max() for value in wanted.values())
    for name, value in wanted.items():  # a gradient that is zero but for rounding is compared with the others
        scale = torch.maximum(value.abs().max(), 1e-3 * largest)
        assert (value - found[name]).abs().max() <= 2e-5 * scale, name
