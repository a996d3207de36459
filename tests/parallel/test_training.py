"""Sharded training follows training on one device, whoever shards and whenever parameters are gathered."""

import pytest
import torch

from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.parallel.rank_work import compute_gradients, read_tokens, train_updates

GLOBAL_BATCH = {"training.global_batch_size": 4, "training.local_batch_size": 1}


def train(model, tmp_path, ranks=1, changes=None, **degrees):
    return pool.run(ranks, train_updates, tiny(model, tmp_path, {**GLOBAL_BATCH, **(changes or {})}, **degrees))[0]


def largest_gap(ours, theirs):
    assert len(ours) == len(theirs)
    return max(abs(one - other) / abs(other) for one, other in zip(ours, theirs, strict=True))


def differing(one, other):
    """Names whose tensors are not equal bit for bit."""
    assert one.keys() == other.keys()
    return sorted(name for name in one if not torch.equal(one[name], other[name]))


@pytest.mark.long
def test_twenty_steps_under_dp4_tp2_ep4_follow_one_device(tmp_path):
    changes = {"training.steps": 20, "lr_scheduler.warmup_steps": 5, "model.n_layers": 2}
    alone = train("deepseek_v3", tmp_path, 1, changes)
    assert alone.losses[-1] < alone.losses[0] - 0.1, "it learns"
    runs = {fsdp: train("deepseek_v3", tmp_path, 8, changes, tp=2, ep=4, fsdp=fsdp) for fsdp in ("fsdp2", "graph")}
    for run in runs.values():
        assert largest_gap(run.losses, alone.losses) < 1e-5
    assert largest_gap(runs["graph"].losses, runs["fsdp2"].losses) < 1e-6


@pytest.mark.parametrize(
    ("model", "ranks", "degrees"),
    [
        ("llama3", 2, {}),
        pytest.param("qwen3", 2, {"tp": 2}, marks=pytest.mark.long),
        pytest.param("qwen3_moe", 2, {"ep": 2}, marks=pytest.mark.long),
        pytest.param("deepseek_v3", 4, {"tp": 2, "ep": 2, "etp": 2}, marks=pytest.mark.long),
    ],
)
def test_both_ways_of_sharding_and_of_resharding_give_the_same_bits(model, ranks, degrees, tmp_path):
    """Not with tied embeddings: FSDP2 adds the two gradients before it sums over ranks, we add them afterwards."""
    changes = {"training.global_batch_size": -1, "training.steps": 3, "model.tied_embeddings": False}
    runs = {
        (fsdp, reshard): train(model, tmp_path, ranks, changes, fsdp=fsdp, reshard_after_forward=reshard, **degrees)
        for fsdp in ("fsdp2", "graph")
        for reshard in (True, False)
    }
    first = runs.pop(("fsdp2", True))
    for run in runs.values():
        assert run.losses == first.losses
        assert run.norms == first.norms
        assert differing(run.parameters, first.parameters) == []


def test_tied_embeddings_differ_by_rounding_only_between_the_ways_of_sharding(tmp_path):
    one, other = (train("qwen3", tmp_path, 2, fsdp=fsdp) for fsdp in ("fsdp2", "graph"))
    assert largest_gap(one.losses, other.losses) < 1e-6
    assert largest_gap(one.norms, other.norms) < 1e-6


@pytest.mark.parametrize("fsdp", ["fsdp2", pytest.param("graph", marks=pytest.mark.long)])
def test_accumulated_micro_batches_equal_one_large_batch(fsdp, tmp_path):
    sizes = {"training.global_batch_size": 8}
    many = train("deepseek_v3", tmp_path, 2, {**sizes, "training.local_batch_size": 1}, ep=2, fsdp=fsdp)
    one = train("deepseek_v3", tmp_path, 2, {**sizes, "training.local_batch_size": 4}, ep=2, fsdp=fsdp)
    assert largest_gap(many.losses, one.losses) < 1e-6
    assert largest_gap(many.norms, one.norms) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("fsdp", ["fsdp2", "graph"])
def test_bf16_compute_keeps_masters_and_gradients_in_fp32(fsdp, tmp_path):
    half = {"training.compute_dtype": "bfloat16", "training.steps": 6}
    exact = train("deepseek_v3", tmp_path, 2, {"training.steps": 6}, fsdp=fsdp)
    run = train("deepseek_v3", tmp_path, 2, half, fsdp=fsdp)
    assert {value.dtype for value in run.parameters.values()} == {torch.float32}
    assert 0 < largest_gap(run.losses, exact.losses) < 5e-3
    answers = pool.run(2, compute_gradients, tiny("deepseek_v3", tmp_path, {**GLOBAL_BATCH, **half}, fsdp=fsdp))
    assert [answer["dtypes"] for answer in answers] == [{torch.float32}] * 2
    kept = [full for name, full in answers[0]["full"].items() if full.ndim == 2]
    assert any(not torch.equal(full, full.bfloat16().float()) for full in kept), "sums are not rounded to bf16"


def test_gradients_reduced_in_bf16_are_rounded_before_they_are_summed(tmp_path):
    changes = {"training.compute_dtype": "bfloat16", "parallelism.reduce_dtype": "bfloat16"}
    for fsdp in ("fsdp2", "graph"):
        config = tiny("llama3", tmp_path, changes, fsdp=fsdp)
        config.parallelism.reduce_dtype = "bfloat16"
        full = pool.run(2, compute_gradients, config)[0]["full"]
        assert all(torch.equal(value, value.bfloat16().float()) for value in full.values())


@pytest.mark.parametrize(
    ("ranks", "degrees"),
    [
        (4, {"replicate": 2}),
        pytest.param(8, {"tp": 2, "ep": 4}, marks=pytest.mark.long),
        (8, {"tp": 2, "ep": 2, "etp": 2}),
        (4, {"tp": 2, "fsdp": "graph"}),
    ],
)
def test_the_norm_counts_every_element_once_and_all_ranks_clip_alike(ranks, degrees, tmp_path):
    """Experts, cut matrices and replicated vectors, some of them padded, in one norm."""
    answers = pool.run(ranks, compute_gradients, tiny("deepseek_v3", tmp_path, {"model.vocab_size": 261}, **degrees))
    full = answers[0]["full"]
    expected = torch.nn.utils.get_total_norm([value.double() for value in full.values()])
    norms = {float(answer["norm"]) for answer in answers}
    assert len(norms) == 1
    assert abs(norms.pop() / float(expected) - 1) < 1e-6
    factors = torch.stack([factor for answer in answers for factor in answer["factors"].values()])
    assert ((factors / (0.01 / expected) - 1).abs() < 1e-4).all()


@pytest.mark.parametrize(
    ("ranks", "degrees"),
    [
        (4, {"tp": 2}),
        (4, {"replicate": 2, "ep": 2}),
        pytest.param(8, {"tp": 2, "ep": 4}, marks=pytest.mark.long),
    ],
)
def test_each_data_parallel_coordinate_reads_its_part_and_peers_read_the_same(ranks, degrees, tmp_path):
    changes = {"training.global_batch_size": 8, "training.local_batch_size": 1}
    whole = pool.run(1, read_tokens, tiny("deepseek_v3", tmp_path, changes))[0]["tokens"]
    answers = pool.run(ranks, read_tokens, tiny("deepseek_v3", tmp_path, changes, **degrees))
    tp = degrees.get("tp", 1)
    assert [answer["part"] for answer in answers] == [(rank // tp, ranks // tp) for rank in range(ranks)]
    for update in range(2):
        for peer in range(tp):
            joined = torch.cat([answer["tokens"][update] for answer in answers[peer::tp]])
            assert joined.equal(whole[update])
