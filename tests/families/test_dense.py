"""Families without experts: eager, per-layer compile and graph have the same bits on every mesh, and verify agrees.

`make test` runs one mesh of each promise, `make test-long` the rest.
"""

import pytest

from tests.execute.updates import LAYER, PATIENCE_SECONDS, differences, on_ranks, small
from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.verify.on_ranks import verify_on_ranks

FAMILIES = ("mistral", "gemma2", "gemma3")
TIED = ("gemma2", "gemma3")
"""Layer mode sums a rank's two uses of a matrix before it reduces them: on several ranks it has bits of its own."""
GRAPH = {"compile.mode": "graph", "parallelism.fsdp": "graph"}
DOCUMENTS = {"model.mask": "document"}
MESHES = {
    "one rank": (1, {}),
    "dp2": (2, {}),
    "replicas": (2, {"replicate": 2}),
    "tp2": (2, {"tp": 2}),
    "cp2": (2, {"cp": 2}),
    "cp2 ulysses": (2, {"cp": 2, "method": "ulysses"}),
    "hsdp": (4, {"replicate": 2, "shard": 2}),
    "dp2 tp2": (4, {"tp": 2}),
}
WAYS = {
    "packed documents": DOCUMENTS,
    "recomputed": {"activation_checkpoint.mode": "full"},
    "recomputed in part": {"activation_checkpoint.mode": "selective"},
    "chunked loss": {"model.loss.chunk_tokens": 5},
    "bf16": {"training.compute_dtype": "bfloat16", **DOCUMENTS},
}


def cases(*quick):
    """Every family on every mesh; quick are these meshes, of the last family alone."""
    pairs = [(family, mesh) for family in FAMILIES for mesh in MESHES]
    return [
        pair if pair[1] in quick and pair[0] == FAMILIES[-1] else pytest.param(*pair, marks=pytest.mark.long)
        for pair in pairs
    ]


def check_bits(folder, family, mesh, modes):
    """Every mode leaves the bits of eager on every rank."""
    ranks, degrees = MESHES[mesh]
    ways = {mode: small(family, folder, changes, **degrees) for mode, changes in modes.items()}
    on_all = [on_ranks(ways["eager"], ways)] if ranks == 1 else None
    found = on_all or pool.run(ranks, on_ranks, ways["eager"], ways, timeout_seconds=PATIENCE_SECONDS)
    for rank, outcome in enumerate(found):
        for mode, updates in outcome.items():
            assert differences(outcome["eager"], updates) == [], f"{mode} on rank {rank}"


@pytest.mark.parametrize(("family", "mesh"), cases("one rank"))
def test_layer_mode_and_graph_have_the_bits_of_eager(family, mesh, tmp_path):
    by_layer = {} if family in TIED and mesh != "one rank" else {"layer": LAYER}
    check_bits(tmp_path, family, mesh, {"eager": {}, **by_layer, "graph": GRAPH})


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_graph_has_the_bits_of_eager_with_these_settings_too(family, way, tmp_path):
    check_bits(tmp_path, family, "one rank", {"eager": WAYS[way], "graph": {**GRAPH, **WAYS[way]}})


@pytest.mark.parametrize(("family", "mesh"), [case for case in cases("tp2") if "one rank" not in str(case)])
def test_a_sharded_plan_computes_what_one_device_computes(family, mesh, tmp_path):
    ranks, degrees = MESHES[mesh]
    config = tiny(family, tmp_path, DOCUMENTS, fsdp="graph", **degrees)
    verdict = pool.run(ranks, verify_on_ranks, config)[0]
    assert verdict.is_equal, verdict.blame
    assert verdict.tolerance == 1e-5
