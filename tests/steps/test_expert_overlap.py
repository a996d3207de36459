"""Chunks in every strategy are the same numbers: on one rank here, on more ranks as a sample of the whole matrix.

`benchmarks/overlap_matrix.py` runs all of it: models, modes, chunks, meshes, policies, twenty steps.
"""

import pytest

from tests.kit.ranks import pool
from tests.steps.overlap import MODES, compare_artifact, compare_strategies, precompile_overlapped

OFF = {"passes.off": ("overlap_experts",)}
WAYS = {
    "trace": {"strategy": "trace", **OFF},
    "graph": {"strategy": "graph", **OFF},
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "mode", "chunks", "saved"),
    [
        ("deepseek_v3", "block batch", 2, "full"),
        ("qwen3_moe", "experts seq", 4, "selective"),
    ],
)
def test_both_strategies_are_eager_chunking_bit_for_bit_on_one_rank(tmp_path, model, mode, chunks, saved):
    ways = {name: {**way, "activation_checkpoint.mode": saved} for name, way in WAYS.items()}
    options = {**MODES[mode], "num_chunks": chunks}
    found = compare_strategies(model, str(tmp_path), options, ways, routings=((), (2, 3)))
    assert found == {name: [] for name in ways}


@pytest.mark.long
def test_spread_experts_that_take_turns_are_eager_chunking_bit_for_bit(tmp_path):
    options = {**MODES["block batch"], "grad_sum": "after_reduce"}
    ways = {"scheduled": {"strategy": "graph"}}
    for found in pool.run(
        2, compare_on_ranks, "qwen3_moe", str(tmp_path), options, ways, {"ep": 2}, timeout_seconds=400
    ):
        assert found == {name: [] for name in ways}


@pytest.mark.parametrize(
    ("model", "chunks"), [("qwen3_moe", 2), pytest.param("deepseek_v3", 4, marks=pytest.mark.long)]
)
def test_blocks_cut_along_the_sequence_are_eager_chunking_bit_for_bit(tmp_path, model, chunks):
    """Chunk j sees the keys of chunks 0 to j, of packed documents."""
    ways = {"trace": {"strategy": "trace", **OFF}}
    options = {**MODES["block seq"], "num_chunks": chunks}
    documents = {"model.mask": "document"}
    assert compare_strategies(model, str(tmp_path), options, ways, ((), (2, 3)), documents) == {"trace": []}


def compare_on_ranks(model, folder, options, ways, degrees):
    return compare_strategies(model, folder, options, ways, ((), (2, 3)), **degrees)


@pytest.mark.long
def test_an_artifact_of_a_chunked_step_is_eager_chunking_bit_for_bit(tmp_path):
    options = {**MODES["block batch"], "strategy": "graph"}
    precompile_overlapped(str(tmp_path), str(tmp_path / "artifact"), 2, options, ep=2)
    given = (str(tmp_path), str(tmp_path / "artifact"), options, {"ep": 2})
    for found in pool.run(2, compare_artifact, *given, timeout_seconds=400):
        assert found == []
