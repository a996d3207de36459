"""compile.numerics float8 on meshes, and resumed."""

import pytest
import torch

from monograph.run import train
from tests.execute.test_float8 import plan
from tests.kit.ranks import pool
from tests.kit.runs import differing, read_exact, read_step
from tests.parallel.rank_work import train_updates

FLOAT8 = {"compile.mode": "graph", "compile.numerics": "float8", "parallelism.fsdp": "graph"}
GLOBAL = {"training.global_batch_size": 4, "training.steps": 3}
LOSS, NORM = 0.005, 0.03
"""Largest relative differences of losses and of gradient norms between a mesh and one device: scales of parts of rows,
and sums in another order, round differently to three bits."""


def plan_mesh(model, folder, changes, **degrees):
    """A run on a mesh; its degrees are given as fields, as those of `plan` are."""
    names = {
        **{"shard": "data_parallel_shard_degree", "tp": "tensor_parallel_degree", "ep": "expert_parallel_degree"},
        **{"pp": "pipeline_parallel_degree", "cp": "context_parallel_degree"},
    }
    fields = {f"parallelism.{names[name]}": degree for name, degree in degrees.items()}
    return plan(
        model, folder, {**FLOAT8, **GLOBAL, "model.n_layers": 1 if model == "llama3" else 2, **fields, **changes}
    )


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ("llama3", {"tp": 2}),
        pytest.param("llama3", {"shard": 2}, marks=pytest.mark.long),
        pytest.param("deepseek_v3", {"shard": 2, "ep": 2}, marks=pytest.mark.long),
    ],
)
def test_two_ranks_train_like_one_device_within_the_rounding_of_float8(model, degrees, tmp_path):
    one = pool.run(1, train_updates, plan_mesh(model, tmp_path, {}))[0]
    two = pool.run(2, train_updates, plan_mesh(model, tmp_path, {}, **degrees))[0]
    for found, wanted, allowed in ((two.losses, one.losses, LOSS), (two.norms, one.norms, NORM)):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=allowed, atol=0.0)


def test_a_resumed_run_has_the_bits_of_the_unbroken_one(tmp_path):
    folders = tmp_path / "whole", tmp_path / "parts"
    for folder in folders:
        folder.mkdir()
        for steps in (4,) if folder.name == "whole" else (2, 4):
            saved = {"checkpoint.enabled": True, "checkpoint.interval": 2, "checkpoint.load": "auto"}
            train(plan_mesh("llama3", folder, {**saved, "training.steps": steps}))
    whole, parts = (folder / "run" for folder in folders)
    assert differing(read_step(whole, 4), read_step(parts, 4)) == []
    assert read_exact(whole) == read_exact(parts)
