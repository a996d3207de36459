"""compile.numerics float8 on meshes, from artifacts, resumed, and after a kill."""

import pytest
import torch

from monograph.commands.precompile import precompile
from monograph.run import train
from monograph.train.layout import plan_run_mesh
from tests.execute.eager_float8 import compare_with_artifact, plan
from tests.kit.ranks import RankDied, pool
from tests.kit.runs import differing, read_exact, read_step
from tests.parallel.rank_work import run_trainer, train_and_die, train_updates

FLOAT8 = {"compile.mode": "graph", "compile.numerics": "float8", "parallelism.fsdp": "graph"}
GLOBAL = {"training.global_batch_size": 4, "training.steps": 3}
SAVED = {"checkpoint.enabled": True, "checkpoint.interval": 2, "checkpoint.load": "auto"}
NARROW = {
    "training.dtype": "bfloat16",
    "optimizer.state_dtype": "bfloat16",
    "optimizer.store_param_remainders": True,
}
LOSS, NORM = 0.005, 0.03
"""Largest relative differences of losses and of gradient norms between a mesh and one device: scales of parts of rows,
and sums in another order, round differently to three bits."""


def plan_mesh(model, folder, changes, **degrees):
    """A run in float8 on a mesh."""
    layers = {"model.n_layers": 1 if model == "llama3" else 2}
    return plan(model, folder, {**FLOAT8, **GLOBAL, **layers, **changes}, **degrees)


@pytest.mark.long
@pytest.mark.parametrize("degrees", [{"tp": 2}, {"cp": 2}], ids=str)
def test_meshes_that_split_scales_train_like_one_device_within_the_rounding_of_float8(degrees, tmp_path):
    """Other meshes have the numbers of one device: tests/verify/test_float8.py."""
    one = pool.run(1, train_updates, plan_mesh("llama3", tmp_path, {}))[0]
    two = pool.run(2, train_updates, plan_mesh("llama3", tmp_path, {}, **degrees))[0]
    for found, wanted, allowed in ((two.losses, one.losses, LOSS), (two.norms, one.norms, NORM)):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=allowed, atol=0.0)


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ("llama3", {}),
        pytest.param("deepseek_v3", {"shard": 2, "ep": 2}, marks=pytest.mark.long),
        pytest.param("llama3", {"tp": 2}, marks=pytest.mark.long),
        pytest.param("llama3", {"shard": 2}, marks=pytest.mark.long),
    ],
)
def test_an_artifact_in_float8_has_the_bits_of_the_captured_step(model, degrees, tmp_path):
    ranks = 2 if degrees else 1
    """With casts of weights once an update; with FSDP alone, of weights that are gathered in float8."""
    once = {"training.global_batch_size": -1, "passes.on": ("cache_float8_weights",)}
    recipe = {"passes.quantize_matmuls.recipe": "tensorwise"} if degrees == {"shard": 2} else {}
    captured = plan_mesh(model, tmp_path, {**once, **recipe}, **degrees)
    precompile(captured, plan_run_mesh(captured, ranks), tmp_path / "artifact")
    for different in pool.run(ranks, compare_with_artifact, captured, str(tmp_path / "artifact")):
        assert different == []


@pytest.mark.parametrize("changes", [{}, pytest.param(NARROW, marks=pytest.mark.long)], ids=["fp32", "bf16"])
def test_a_resumed_run_has_the_bits_of_the_unbroken_one(changes, tmp_path):
    folders = tmp_path / "whole", tmp_path / "parts"
    for folder in folders:
        folder.mkdir()
        for steps in (4,) if folder.name == "whole" else (2, 4):
            train(plan_mesh("llama3", folder, {**SAVED, **changes, "training.steps": steps}))
    whole, parts = (folder / "run" for folder in folders)
    assert differing(read_step(whole, 4), read_step(parts, 4)) == []
    assert read_exact(whole) == read_exact(parts)


@pytest.mark.long
@pytest.mark.parametrize(("degrees", "recipe"), [({"shard": 2}, "tensorwise"), ({"tp": 2}, "rowwise")], ids=str)
def test_a_run_that_is_killed_and_resumed_has_the_bits_of_the_unbroken_one(degrees, recipe, tmp_path):
    """Weights are gathered in float8, or cast once an update; some micro-batches are computed twice to be compared."""
    replayed = {"debug.replay_every": 2, "debug.deterministic": True, "passes.quantize_matmuls.recipe": recipe}
    changes = {**SAVED, **NARROW, **replayed, "training.steps": 4}
    configs = {}
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        configs[name] = plan_mesh("llama3", tmp_path / name, changes, **degrees)
    whole = pool.run(2, run_trainer, configs["whole"])[0]
    with pytest.raises(RankDied, match="rank 1 was killed by SIGKILL"):
        pool.run(2, train_and_die, configs["killed"], 1, 3, tmp_path / "died")
    resumed = pool.run(2, run_trainer, configs["killed"])[0]
    assert differing(whole.parameters | whole.moments, resumed.parameters | resumed.moments) == []
