"""Families in every mode and on every mesh: eager, per-layer compile and the graph have the same bits.

`make test` runs one case of each promise for every family, `make test-long` the rest.
"""

from pathlib import Path

import pytest

from tests.execute.updates import LAYER, PATIENCE_SECONDS, differences, on_ranks, small
from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.verify.on_ranks import verify_on_ranks

FAMILIES = ("gpt_oss", "llama4")
GRAPH = {"compile.mode": "graph", "parallelism.fsdp": "graph"}
MESHES = {
    "one rank": (1, {}),
    "dp2": (2, {}),
    "tp2": (2, {"tp": 2}),
    "ep2": (2, {"ep": 2}),
    "cp2": (2, {"cp": 2}),
    "cp2 ulysses": (2, {"cp": 2, "method": "ulysses"}),
    "tp2 etp2": (2, {"tp": 2, "etp": 2}),
    "dp2 tp2 ep2": (4, {"tp": 2, "ep": 2}),
}


def long_except(*quick):
    """Every family on every mesh; those named here are quick."""
    cases = [(family, mesh) for family in FAMILIES for mesh in MESHES]
    return [case if case[1] in quick else pytest.param(*case, marks=pytest.mark.long) for case in cases]


def run_modes(folder: Path, family: str, mesh: str, modes: dict, experts: str = "loop", extra: dict | None = None):
    ranks, degrees = MESHES[mesh]
    ways = {
        mode: small(family, folder, {**changes, **(extra or {})}, experts=experts, **degrees)
        for mode, changes in modes.items()
    }
    if ranks == 1:
        return [on_ranks(ways["eager"], ways)]
    return pool.run(ranks, on_ranks, ways["eager"], ways, timeout_seconds=PATIENCE_SECONDS)


def check_equal(found):
    for rank, ways in enumerate(found):
        for mode, updates in ways.items():
            assert differences(ways["eager"], updates) == [], f"{mode} on rank {rank}"


def test_a_graph_of_gpt_oss_has_the_bits_of_eager(tmp_path):
    """Its blocks are compiled one by one in `make test-long`."""
    check_equal(run_modes(tmp_path, "gpt_oss", "one rank", {"eager": {}, "graph": GRAPH}))


@pytest.mark.parametrize(
    ("family", "mesh"),
    [("llama4", "one rank"), *(case for case in long_except() if case.values != ("llama4", "one rank"))],
)
def test_eager_layer_and_graph_have_the_same_bits(family, mesh, tmp_path):
    check_equal(run_modes(tmp_path, family, mesh, {"eager": {}, "layer": LAYER, "graph": GRAPH}))


@pytest.mark.parametrize(("family", "mesh"), long_except())
def test_grouped_experts_and_packed_documents_have_the_same_bits_in_a_graph(family, mesh, tmp_path):
    modes = {"eager": {}, "graph": GRAPH}
    check_equal(run_modes(tmp_path, family, mesh, modes, "grouped", {"model.mask": "document"}))


@pytest.mark.long
@pytest.mark.parametrize("policy", ["full", "selective", "min_cut"])
@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_activations_change_no_bit(family, policy, tmp_path):
    changed = {**GRAPH, "activation_checkpoint.mode": policy}
    check_equal(run_modes(tmp_path, family, "one rank", {"eager": {}, policy: changed}))


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_that_overlap_have_the_bits_of_chunks_in_turn(family, tmp_path):
    chunked = {"training.local_batch_size": 4, "compile.expert_overlap.strategy": "trace", "parallelism.fsdp": "graph"}
    modes = {"eager": {}, "graph": {"compile.mode": "graph"}}
    check_equal(run_modes(tmp_path, family, "ep2", modes, "grouped", chunked))


@pytest.mark.parametrize(("family", "mesh"), [case for case in long_except("tp2 etp2") if "one rank" not in str(case)])
def test_a_sharded_plan_computes_what_one_device_computes(family, mesh, tmp_path):
    ranks, degrees = MESHES[mesh]
    config = tiny(family, tmp_path, {"model.mask": "document"}, fsdp="graph", **degrees)
    verdict = pool.run(ranks, verify_on_ranks, config)[0]
    assert verdict.is_equal, verdict.blame
    assert verdict.tolerance == 1e-5
