"""Auxiliary losses on meshes: every scope equals one device, and a graph has the bits of eager, chunked or not."""

import itertools

import pytest

from tests.execute.updates import PATIENCE_SECONDS
from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.steps.overlap import MODES, compare_strategies
from tests.steps.variants import compare_with_eager
from tests.verify.on_ranks import verify_on_ranks

MESHES = {"dp2": (2, {}), "tp2": (2, {"tp": 2}), "ep2": (2, {"ep": 2}), "dp2 tp2 ep2": (4, {"tp": 2, "ep": 2})}
SCOPES = ("sequence", "micro_batch", "global")


def balanced(scope: str) -> dict:
    return {
        "model.moe.balance.scope": scope,
        "model.moe.balance.coefficient": 0.1,
        "model.moe.balance.z_coefficient": 0.01,
    }


@pytest.mark.parametrize("model", ["qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.long
def test_every_scope_equals_one_device_on_every_mesh(model, scope, mesh, mode, tmp_path):
    check_verified(model, scope, mesh, mode, tmp_path)


@pytest.mark.parametrize(
    ("model", "scope"), [pytest.param("qwen3_moe", "global", marks=pytest.mark.long), ("deepseek_v3", "sequence")]
)
def test_auxiliary_losses_of_several_micro_batches_equal_one_device(model, scope, tmp_path):
    check_verified(model, scope, "dp2 tp2 ep2", "eager", tmp_path)


def check_verified(model, scope, mesh, mode, folder):
    ranks, degrees = MESHES[mesh]
    sequences = 2 if "tp" in degrees and ranks == 2 else 4
    changes = {"compile.mode": mode, "training.global_batch_size": sequences, **balanced(scope)}
    verdict = pool.run(ranks, verify_on_ranks, tiny(model, folder, changes, fsdp="graph", **degrees))[0]
    assert verdict.is_equal, verdict.blame
    assert verdict.all.metrics.keys() >= {"expert_load", "load_balancing_loss", "router_z_loss", "aux_loss"}


def compare(folder, model, scope, degrees):
    return compare_with_eager(model, folder, ("default",), extra=balanced(scope), **degrees)


@pytest.mark.parametrize("model", ["qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.long
def test_a_graph_has_the_bits_of_eager_with_every_scope(model, scope, mesh, tmp_path):
    ranks, degrees = MESHES[mesh]
    found = pool.run(ranks, compare, str(tmp_path), model, scope, degrees, timeout_seconds=PATIENCE_SECONDS)
    assert found == [{"default": []}] * ranks


def compare_chunked(folder, model, scope, options, degrees):
    ways = {name: {"strategy": name, "passes.off": ("overlap_experts",)} for name in ("trace", "graph")}
    extra = {**balanced(scope), "model.n_layers": 2}
    return compare_strategies(model, folder, options, ways, routings=((), (0,)), extra=extra, **degrees)


@pytest.mark.parametrize(
    ("chunks", "scope"),
    [pytest.param(*case, marks=pytest.mark.long) for case in itertools.product(MODES, SCOPES)],
)
def test_chunked_graphs_have_the_bits_of_eager_chunking(chunks, scope, tmp_path):
    found = compare_chunked(str(tmp_path), "qwen3_moe", scope, MODES[chunks], {})
    assert found == {"trace": [], "graph": []}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("chunks", MODES)
@pytest.mark.long
def test_chunked_graphs_on_four_ranks_have_the_bits_of_eager_chunking(chunks, scope, tmp_path):
    given = (str(tmp_path), "deepseek_v3", scope, MODES[chunks], {"tp": 2, "ep": 2})
    found = pool.run(4, compare_chunked, *given, timeout_seconds=PATIENCE_SECONDS)
    assert found == [{"trace": [], "graph": []}] * 4


@pytest.mark.parametrize(
    ("chunks", "scope"),
    [
        pytest.param(*case, marks=() if case == ("experts seq", "global") else pytest.mark.long)
        for case in itertools.product(MODES, SCOPES)
    ],
)
def test_chunks_use_the_counts_of_whole_sequences(chunks, scope, tmp_path):
    """A chunked run is verified against one device that knows no chunks."""
    options = {"strategy": "trace", **MODES[chunks]}
    changes = {f"compile.expert_overlap.{name}": value for name, value in options.items()}
    changes |= {"training.local_batch_size": 4, "parallelism.fsdp": "graph", **balanced(scope)}
    verdict = pool.run(1, verify_on_ranks, tiny("qwen3_moe", tmp_path, changes))[0]
    assert verdict.is_equal, verdict.blame
