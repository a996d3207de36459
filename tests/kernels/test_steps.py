"""Whole steps with our own ops in them: graphs hold them like any other op, and keep eager's bits."""

import pytest

from monograph.execute.graph_step import GraphStep
from monograph.kernels.chunked_cross_entropy import CHUNKED_CROSS_ENTROPY
from monograph.kernels.expert_rows import COMBINE_ROWS, COMBINE_ROWS_BACKWARD, SUM_ROWS
from monograph.kernels.heads import JOIN_HEADS, SPLIT_HEADS
from monograph.kernels.norm import ADD_NORM, NORM_BACKWARD_RECOMPUTE
from monograph.kernels.rope import ROPE
from monograph.kernels.swiglu import SWIGLU, SWIGLU_BACKWARD_RECOMPUTE
from tests.execute.updates import PATIENCE_SECONDS, differences, make_updates, on_ranks, one_rank, small
from tests.kit.ranks import pool
from tests.steps.overlap import MODES, compare_strategies

GRAPH = {"compile.mode": "graph", "parallelism.fsdp": "graph"}
FUSED = {"model.kernels": "fused"}
OF_ALL = {SWIGLU, SWIGLU_BACKWARD_RECOMPUTE, CHUNKED_CROSS_ENTROPY, ADD_NORM, NORM_BACKWARD_RECOMPUTE}
OF_EXPERTS = {SUM_ROWS, COMBINE_ROWS, COMBINE_ROWS_BACKWARD}
OPS = {"llama3": OF_ALL | {ROPE}, "deepseek_v3": OF_ALL | OF_EXPERTS | {JOIN_HEADS, SPLIT_HEADS}}


@pytest.mark.parametrize("model", ["llama3", pytest.param("deepseek_v3", marks=pytest.mark.long)])
def test_a_graph_of_fused_ops_keeps_the_bits_of_eager_mode(model, tmp_path):
    made, seen = {}, set()

    def look(step):
        if isinstance(step, GraphStep):
            seen.update(node.target for node in step.graph.nodes)

    for name, changes in {
        "plain": {},
        "eager": FUSED,
        "graph": {**GRAPH, **FUSED},
        "layer": {**FUSED, "compile.mode": "layer", "compile.backend": "aot_eager"},
        "less memory": {**GRAPH, **FUSED, "activation_checkpoint.mode": "full"},
        "min-cut": {**GRAPH, **FUSED, "activation_checkpoint.mode": "min_cut"},
    }.items():
        config = small(model, tmp_path, changes)
        with one_rank(config) as groups:
            made[name] = make_updates(config, groups, prepare=look)
    assert seen >= OPS[model], "the ops were asked for, so the graph has them"
    for name in ("graph", "layer", "less memory", "min-cut"):
        assert differences(made["eager"], made[name]) == [], name
    losses = [(fused.loss, plain.loss) for fused, plain in zip(made["eager"], made["plain"], strict=True)]
    assert losses[0][0] == pytest.approx(losses[0][1], rel=2e-7), "only norms round elsewhere than torch's"
    for fused, plain in losses:
        assert fused == pytest.approx(plain, rel=1e-5), "Adam makes whole steps of the smallest gradients' roundings"


@pytest.mark.long
def test_experts_on_other_ranks_keep_their_bits_with_fused_rows(tmp_path):
    changes = {"plain": {"parallelism.fsdp": "graph"}, "eager": {**FUSED, "parallelism.fsdp": "graph"}}
    ways = {
        name: small("qwen3_moe", tmp_path, each, experts="grouped", ep=2)
        for name, each in {**changes, "graph": {**GRAPH, **FUSED}}.items()
    }
    for made in pool.run(2, on_ranks, ways["plain"], ways, timeout_seconds=PATIENCE_SECONDS):
        assert differences(made["eager"], made["graph"]) == []
        for fused, plain in zip(made["eager"], made["plain"], strict=True):
            assert fused.loss == pytest.approx(plain.loss, rel=1e-3), "norms round elsewhere than torch's, in bf16"


@pytest.mark.long
def test_fused_rows_are_cut_into_chunks_like_any_other_op(tmp_path):
    for found in pool.run(2, compare_chunks, str(tmp_path), timeout_seconds=PATIENCE_SECONDS):
        assert found == {"scheduled": []}


def compare_chunks(folder):
    """On one of two ranks: what differs from eager chunking."""
    ways = {"scheduled": {"strategy": "graph"}}
    return compare_strategies("qwen3_moe", folder, MODES["block batch"], ways, ((), (2, 3)), FUSED, ep=2)
