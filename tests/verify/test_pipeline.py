"""`verify` of pipelines: all stages together against one device, on meshes of up to eight ranks."""

import pytest

from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.verify.on_ranks import verify_on_ranks

CASES = {
    "deepseek_v3-pp2": ("deepseek_v3", 2, {}, "1f1b"),
    "deepseek_v3-pp2-tp2": ("deepseek_v3", 4, {"tp": 2}, "1f1b"),
    "qwen3_moe-pp2-dp2-zbv": ("qwen3_moe", 4, {"shard": 2}, "zbv"),
    "deepseek_v3-pp2-ep2": ("deepseek_v3", 4, {"ep": 2}, "zero_bubble"),
    "llama3-pp2-cp2": ("llama3", 4, {"cp": 2}, "1f1b"),
    "qwen3_moe-pp2-dp2-tp2": ("qwen3_moe", 8, {"tp": 2}, "interleaved_1f1b"),
}
SHORT = ("deepseek_v3-pp2",)


@pytest.mark.parametrize(
    "case", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in CASES]
)
def test_a_pipeline_computes_what_one_device_computes(case, tmp_path):
    model, ranks, degrees, schedule = CASES[case]
    more = {"pipeline_parallel_degree": 2, "pipeline_schedule": schedule}
    parts = ranks // 2 // degrees.get("tp", 1) // degrees.get("cp", 1)
    changes = {"compile.mode": "graph", "model.n_layers": 4, "training.global_batch_size": 4 * parts}
    config = tiny(model, tmp_path, changes, **degrees, **more)
    verdict = pool.run(ranks, verify_on_ranks, config, timeout_seconds=300)[0]
    assert verdict.is_equal, str(verdict)
    compared = [path for path, row in verdict.all.rows.items() if row.gradient is not None]
    assert {path.split(".")[1] for path in compared if path.startswith("layers.")} == {"0", "1", "2", "3"}
