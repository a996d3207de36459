"""`verify` of runs in float8: the plan in fp32, and float8 itself where the mesh has the scales of one device."""

import pytest

from monograph.train.layout import plan_run_mesh
from monograph.verify.float8 import in_float8
from monograph.verify.run import in_fp32
from monograph.verify.show import print_verdict
from tests.execute.test_float8_runs import plan_mesh
from tests.kit.ranks import pool
from tests.verify.on_ranks import verify_on_ranks, verify_with_other_scales


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "degrees", "recipe", "tolerance"),
    [
        ("llama3", {"shard": 2}, "rowwise", 1e-5),
        ("llama3", {"shard": 2}, "tensorwise", 1e-5),
        ("deepseek_v3", {"shard": 2, "ep": 2}, "rowwise", 2**-7),
        ("llama3", {"pp": 2}, "rowwise", 1e-5),
    ],
)
def test_verify_compares_float8_where_a_mesh_has_the_scales_of_one_device(model, degrees, recipe, tolerance, tmp_path):
    changes = {"model.n_layers": 2, "passes.quantize_matmuls.recipe": recipe}
    changes["model.tied_embeddings"] = "pp" in degrees
    verdict = pool.run(2, verify_on_ranks, plan_mesh(model, tmp_path, changes, **degrees))[0]
    assert verdict.is_equal and not verdict.float8_reason
    assert verdict.tolerance == 1e-5 and "low precision" not in verdict.numerics, "the plan itself, in fp32"
    float8 = verdict.float8
    assert float8.tolerance == tolerance and float8.numerics.startswith("low precision: quantize_matmuls")
    exact = [row for row in float8.all.rows.values() if not row.path.endswith("moe.experts")]
    assert max(row.worst() for row in exact) <= 1e-5
    assert sum(row.gradient is not None for row in exact) > 10


@pytest.mark.long
@pytest.mark.parametrize("degrees", [{"tp": 2}, {"cp": 2}])
def test_verify_says_why_a_mesh_is_compared_in_fp32_only(degrees, tmp_path, capsys):
    config = plan_mesh("llama3", tmp_path, {}, **degrees)
    verdict = pool.run(2, verify_on_ranks, config)[0]
    assert verdict.is_equal and verdict.float8 is None
    print_verdict(verdict, plan_run_mesh(config, 2))
    assert "not compared in float8: " in (shown := capsys.readouterr().out) and "its own scale" in shown


@pytest.mark.long
def test_verify_sees_a_mesh_that_scales_otherwise(tmp_path):
    verdict = pool.run(2, verify_with_other_scales, plan_mesh("llama3", tmp_path, {}, shard=2))[0]
    assert verdict.is_close and not verdict.is_equal, "the plan is right, its float8 is not"
    assert verdict.float8.blame.startswith("layers.0.attention: its output differs by ")


def test_what_would_differ_by_chance_or_by_rounding_is_left_out_of_the_comparison(tmp_path):
    moments = {"optimizer.state_dtype": "bfloat16"}
    config = plan_mesh("llama3", tmp_path, moments)
    assert config.passes.runs("fuse_embedding_gradient", "float8")
    for compared in (in_fp32(config), in_float8(config)):
        assert compared.optimizer.state_dtype == "float32" and compared.plan_optimizer().is_single_pass
    assert not in_float8(config).passes.runs("fuse_embedding_gradient", "float8")
