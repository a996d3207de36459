"""Whole steps with our own ops in them: graphs hold them like any other op, and keep eager's bits."""

import pytest

from tests.execute.updates import differences, make_updates, one_rank, small

GRAPH = {"compile.mode": "graph", "parallelism.fsdp": "graph"}
FUSED = {"model.kernels": "fused"}


@pytest.mark.parametrize("model", ["llama3", pytest.param("deepseek_v3", marks=pytest.mark.long)])
def test_a_graph_of_fused_ops_keeps_the_bits_of_eager_mode(model, tmp_path):
    made = {}
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
            made[name] = make_updates(config, groups)
    for name in ("graph", "layer", "less memory", "min-cut"):
        assert differences(made["eager"], made[name]) == [], name
    assert differences(made["plain"], made["eager"]) == [], "on a CPU the ops are torch's own"
