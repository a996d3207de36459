"""Graph mode leaves the bits of eager mode: by default, with every memory policy, and without any one of the passes.

Every model with experts on the meshes a small machine can hold; `benchmarks/graph_matrix.py` runs the whole list.
"""

import pytest

from tests.execute.updates import PATIENCE_SECONDS
from tests.kit.ranks import pool
from tests.steps.variants import NOTHING, POLICIES, VARIANTS, WITHOUT, compare_with_eager

FAST = tuple(name for name in WITHOUT if "compile" not in name and "mark_" not in name)
"""Switching off a pass that does nothing by default shows nothing."""


def check_equal(found):
    for rank, variants in enumerate(found):
        for name, differing in variants.items():
            assert differing == [], f"{name} on rank {rank}: {len(differing)} tensors, first {differing[:3]}"


def compare_on_ranks(folder, ranks, model, names, experts="loop", extra=None, **degrees):
    given = (str(folder), model, names, experts, extra, degrees)
    check_equal(pool.run(ranks, compare, *given, timeout_seconds=PATIENCE_SECONDS))


def compare(folder, model, names, experts, extra, degrees):
    """On one rank."""
    return compare_with_eager(model, folder, names, experts, extra, **degrees)


SAMPLE = ("no choose_saved", *NOTHING)
REST = tuple(name for name in FAST if name not in SAMPLE)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("min_cut", "selected", "offload"), id="some policies", marks=pytest.mark.long),
        pytest.param(tuple(POLICIES), id="every policy", marks=pytest.mark.long),
        pytest.param(SAMPLE, id="some passes off"),
        pytest.param(REST, id="every other pass off", marks=pytest.mark.long),
    ],
)
def test_one_device_has_the_bits_of_eager_with_every_variant(names, tmp_path):
    check_equal([compare_with_eager("deepseek_v3", str(tmp_path), names, "grouped", {"model.dropout": 0.1})])


def test_packed_documents_tied_weights_and_grouped_experts_change_nothing(tmp_path):
    check_equal([compare_with_eager("qwen3_moe", str(tmp_path), ("default",), "grouped", {"model.mask": "document"})])
    check_equal([compare_with_eager("llama3", str(tmp_path), ("default",), extra={"model.tied_embeddings": True})])


@pytest.mark.long
def test_two_ranks_that_shard_have_the_bits_of_eager(tmp_path):
    compare_on_ranks(tmp_path, 2, "llama3", ("default", "offload", "no bucket_collectives"))


@pytest.mark.long
def test_two_ranks_of_tensor_parallelism_have_the_bits_of_eager(tmp_path):
    compare_on_ranks(tmp_path, 2, "qwen3_moe", ("default", "min_cut"), tp=2)


@pytest.mark.long
def test_two_ranks_that_split_every_expert_have_the_bits_of_eager(tmp_path):
    names = ("default", "no elide_trivial_collectives")
    compare_on_ranks(tmp_path, 2, "qwen3_moe", names, tp=2, etp=2)


@pytest.mark.long
def test_two_ranks_that_exchange_tokens_have_the_bits_of_eager(tmp_path):
    compare_on_ranks(tmp_path, 2, "deepseek_v3", ("default", "full"), ep=2)


@pytest.mark.long
def test_four_ranks_with_everything_have_the_bits_of_eager(tmp_path):
    compare_on_ranks(tmp_path, 4, "deepseek_v3", ("default",), "grouped", tp=2, ep=2)


def test_two_ranks_that_split_matmuls_and_exchange_tokens_have_the_bits_of_eager(tmp_path):
    compare_on_ranks(tmp_path, 2, "deepseek_v3", ("default",), "grouped", tp=2, ep=2, etp=1)


@pytest.mark.parametrize(
    ("model", "how", "tp"),
    [
        ("llama3", {}, 1),
        pytest.param("deepseek_v3", {"gather": "keys_values"}, 1, marks=pytest.mark.long),
        pytest.param("deepseek_v3", {"gather": "latent"}, 1, marks=pytest.mark.long),
        pytest.param("qwen3_moe", {"method": "ulysses"}, 2, marks=pytest.mark.long),
        pytest.param("deepseek_v3", {"gather": "keys_values"}, 2, marks=pytest.mark.long),
        pytest.param("deepseek_v3", {"gather": "latent"}, 2, marks=pytest.mark.long),
    ],
)
def test_ranks_that_share_sequences_have_the_bits_of_eager(model, how, tp, tmp_path):
    extra = {"model.mask": "document", "model.dropout": 0.1}
    given = ("loop", extra) if model == "llama3" else ("grouped", extra)
    names = ("default",) if model == "llama3" else ("default", "full", "offload")
    compare_on_ranks(tmp_path, 2 * tp, model, names, *given, cp=2, tp=tp, **how)


@pytest.mark.long
def test_ranks_that_share_sequences_have_the_bits_of_eager_without_any_pass(tmp_path):
    extra = {"model.mask": "document", "model.dropout": 0.1}
    compare_on_ranks(tmp_path, 2, "llama3", ("no pass at all",), "loop", extra, cp=2)


def test_the_variants_are_really_different():
    assert len({str(sorted(changes.items())) for changes in VARIANTS.values()}) == len(VARIANTS)
