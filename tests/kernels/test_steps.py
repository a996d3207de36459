"""Whole steps with our own ops in them: graphs hold them like any other op, and keep eager's bits."""

import pytest

from monograph.execute.runner import GraphStep
from monograph.kernels.gate import GATE, GATE_BACKWARD_AGAIN
from monograph.kernels.norm import ADD_NORM, NORM_BACKWARD_AGAIN
from monograph.kernels.rotation import ROTATE
from monograph.kernels.sliced_loss import SLICED_LOSS
from tests.execute.updates import differences, make_updates, one_rank, small

GRAPH = {"compile.mode": "graph", "parallelism.fsdp": "graph"}
FUSED = {"model.kernels": "fused"}


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
        "less memory": {**GRAPH, **FUSED, "passes.choose_saved.policy": "full"},
        "min-cut": {**GRAPH, **FUSED, "passes.choose_saved.policy": "min_cut"},
    }.items():
        config = small(model, tmp_path, changes)
        with one_rank(config) as groups:
            made[name] = make_updates(config, groups, prepare=look)
    assert seen >= {GATE, GATE_BACKWARD_AGAIN, ROTATE, SLICED_LOSS, ADD_NORM, NORM_BACKWARD_AGAIN}, (
        "the ops were asked for, so the graph has them"
    )
    for name in ("graph", "layer", "less memory", "min-cut"):
        assert differences(made["eager"], made[name]) == [], name
    for fused, plain in zip(made["eager"], made["plain"], strict=True):
        assert fused.loss == pytest.approx(plain.loss, rel=1e-6), "only norms round elsewhere than torch's"
