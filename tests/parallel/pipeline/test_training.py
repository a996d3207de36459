"""Pipelines on real ranks: the bits of one device that accumulates the same micro-batches."""

import functools
import math
import tempfile
from pathlib import Path

import pytest
import torch

from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.parallel.pipeline.pipeline_work import EMBEDDING, OUTPUT, make_updates

SHORT = {
    "pp": "pipeline_parallel_degree",
    "cp": "context_parallel_degree",
    "schedule": "pipeline_schedule",
    "virtual": "pipeline_virtual_stages",
    "stages": "pipeline_stages",
}
_HELD = tempfile.TemporaryDirectory(prefix="monograph-pipeline-")


def configure(model, micro_batches, changes=(), **degrees):
    parts = degrees.get("shard", 1) * degrees.get("replicate", 1)
    small = {"compile.mode": "graph", "training.global_batch_size": micro_batches * parts, "model.n_layers": 5}
    named = {SHORT.get(name, name): value for name, value in degrees.items()}
    return tiny(model, Path(_HELD.name), {**small, **dict(changes)}, **named)


@functools.cache
def one_device(model, micro_batches, updates, changes=(), *, is_tied_apart=False, **degrees):
    if is_tied_apart:
        changes = (*changes, ("model.tied_embeddings", False))
    ranks = math.prod(degrees.get(name, 1) for name in ("shard", "replicate", "tp", "cp"))
    config = configure(model, micro_batches, changes, **degrees)
    return pool.run(ranks, make_updates, config, updates, is_tied_apart)


def check_bits(reference, ranks):
    """Every rank has the reference's losses and norms, and its share of the parameters."""
    per_stage = len(reference)
    for rank, found in enumerate(ranks):
        wanted = reference[rank % per_stage]
        assert found.losses == wanted.losses
        assert found.norms == wanted.norms
        assert found.evaluations == wanted.evaluations
        for name, value in found.parameters.items():
            assert torch.equal(value, wanted.parameters[name]), f"{name} on rank {rank}"
        for name, value in found.buffers.items():
            assert torch.equal(value, wanted.buffers[name]), f"{name} on rank {rank}"
        for ours, theirs in zip(found.metrics, wanted.metrics, strict=True):
            assert ours.keys() == theirs.keys()
            if "expert_load" in ours:
                assert torch.equal(ours["expert_load"], theirs["expert_load"])
            for name in ours.keys() - {"expert_load"}:  # summed stage by stage
                torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=0)
    names = {name for found in ranks for name in found.parameters}
    assert names == {name for found in reference for name in found.parameters} - {OUTPUT} | (names & {OUTPUT})


def compare(model, micro_batches, updates=3, changes=(), *, pp, is_tied=False, schedule="1f1b", **degrees):
    mesh = {name: value for name, value in degrees.items() if name in ("shard", "replicate", "cp", "tp", "ep", "etp")}
    reference = one_device(model, micro_batches, updates, changes, is_tied_apart=is_tied, **mesh)
    config = configure(model, micro_batches, changes, pp=pp, schedule=schedule, **degrees)
    found = pool.run(pp * len(reference), make_updates, config, updates)
    check_bits(reference, found)
    return found


VALIDATED = (("validator.interval", 1),)
SHALLOW = (*VALIDATED, ("model.n_layers", 2))
"""With the embedding and the head as many units as a pipeline of two ranks with two stages each needs."""


def test_two_stages_with_experts_balancing_losses_and_evaluation_have_the_bits_of_one_device():
    found = compare("deepseek_v3", 4, 2, changes=(*VALIDATED, ("model.n_layers", 2)), pp=2)
    assert len(found[0].parameters) != len(found[0].parameters | found[1].parameters), "each rank has its stage alone"


@pytest.mark.parametrize("model", ["llama3", pytest.param("deepseek_v3", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param("gpipe", marks=pytest.mark.long),
        "interleaved_1f1b",
        pytest.param("zero_bubble", marks=pytest.mark.long),
        "zbv",
    ],
)
def test_every_schedule_has_the_bits_of_one_device(schedule, model):
    """In `make test` one that interleaves stages and one that also splits backward."""
    compare(model, 4, changes=SHALLOW if model == "llama3" else VALIDATED, pp=2, schedule=schedule)


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("zbv", marks=pytest.mark.long)])
def test_a_tied_matrix_on_two_stages_or_twice_on_one_rank_sums_each_use_over_the_update(schedule):
    found = compare("qwen3", 4, pp=2, schedule=schedule, is_tied=True)
    holders = [each for each in found if EMBEDDING in each.parameters]
    assert len(holders) == (2 if schedule == "1f1b" else 1)


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("interleaved_1f1b", marks=pytest.mark.long)])
def test_eager_stages_have_the_bits_of_the_captured_ones(schedule):
    compare("deepseek_v3", 4, 1, changes=(*SHALLOW, ("compile.mode", "eager")), pp=2, schedule=schedule)


@pytest.mark.parametrize(
    ("model", "schedule", "mode"),
    [
        pytest.param("llama3", "1f1b", "none", marks=pytest.mark.long),
        pytest.param("deepseek_v3", "interleaved_1f1b", "none", marks=pytest.mark.long),
        pytest.param("qwen3", "gpipe", "full", marks=pytest.mark.long),
    ],
)
def test_stages_with_compiled_blocks_have_the_bits_of_one_device_with_them(model, schedule, mode):
    layer = (("compile.mode", "layer"), ("compile.backend", "aot_eager"), ("activation_checkpoint.mode", mode))
    if model == "llama3":
        compare(model, 2, 1, (*layer, ("model.n_layers", 2)), pp=2, schedule=schedule)
    else:
        compare(model, 4, 3, (*VALIDATED, *layer), pp=2, schedule=schedule, is_tied=model == "qwen3")


@pytest.mark.parametrize(
    ("model", "schedule"),
    [
        ("llama3", "1f1b"),
        pytest.param("qwen3", "zbv", marks=pytest.mark.long),
        pytest.param("llama3", "zero_bubble", marks=pytest.mark.long),
        pytest.param("qwen3", "interleaved_1f1b", marks=pytest.mark.long),
    ],
)
def test_actions_that_are_recorded_once_and_replayed_have_the_bits_of_one_device(model, schedule):
    is_tied = model == "qwen3"
    reference = one_device(model, 4, 3, SHALLOW, is_tied_apart=is_tied)
    config = configure(model, 4, SHALLOW, pp=2, schedule=schedule)
    found = pool.run(2, make_updates, config, 3, False, True)
    check_bits(reference, found)
    per_stage = 3 if schedule in ("zbv", "zero_bubble") else 2
    stages = 2 if schedule in ("zbv", "interleaved_1f1b") else 1
    assert [each.recordings for each in found] == [4 * per_stage * stages] * 2


def test_fewer_micro_batches_than_stages_and_uneven_stages_have_the_bits_of_one_device():
    compare("llama3", 2, 2, (("model.n_layers", 3),), pp=4, stages=("layers.0", "layers.2", "head"))


@pytest.mark.long
def test_a_pipeline_of_sharded_data_parallel_ranks_has_the_bits_of_those_ranks_without_it():
    compare("deepseek_v3", 2, pp=2, shard=2)


@pytest.mark.long
@pytest.mark.parametrize("model", ["llama3", "deepseek_v3", "qwen3_moe"])
@pytest.mark.parametrize(
    ("pp", "schedule", "virtual"),
    [(pp, name, 0) for pp in (2, 4) for name in ("gpipe", "1f1b", "zero_bubble")]
    + [(2, "interleaved_1f1b", 2), (2, "zbv", 2), (4, "interleaved_1f1b", 2), (4, "zbv", 2), (2, "gpipe", 2)],
)
def test_ten_updates_of_every_model_and_schedule_have_the_bits_of_one_device(model, pp, schedule, virtual):
    layers = (("model.n_layers", 6),)
    compare(model, 4, 10, layers, pp=pp, schedule=schedule, virtual=virtual, is_tied=model == "qwen3_moe")


@pytest.mark.long
@pytest.mark.parametrize(
    "degrees",
    [
        {"tp": 2},
        {"replicate": 2},
        {"shard": 2, "ep": 2},
        {"shard": 2, "tp": 2},
        {"tp": 2, "ep": 2, "etp": 1},
        {"tp": 2, "etp": 2},
        {"cp": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_a_pipeline_over_a_mesh_has_the_bits_of_that_mesh_without_it(degrees, schedule):
    compare("deepseek_v3", 4, 3, pp=2, schedule=schedule, **degrees)


@pytest.mark.long
@pytest.mark.parametrize("model", ["gpt_oss", "llama4", "mistral", "gemma2", "gemma3"])
def test_every_family_of_decoders_has_the_bits_of_one_device(model):
    kinds = (("model.layer_kinds", ("window", "full") * 2),) if model == "gemma3" else ()
    layers = (*kinds, ("model.n_layers", 4))
    compare(model, 4, 2, layers, pp=2, schedule="zero_bubble", is_tied=model.startswith("gemma"))
