"""Ranks that share sequences train as one device does: losses, order of samples, validation, saved activations."""

import json

import pytest
import torch

from monograph.graph.query import find_storages, is_backward, is_compute, value_of
from monograph.graph.tags import tag_of
from monograph.parallel.groups import fake_groups
from monograph.passes.memory.saved import find_crossing
from monograph.train.layout import plan_run_mesh
from tests.kit.capture import prepare
from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.parallel.rank_work import read_tokens, run_trainer

CHANGES = {
    "model.mask": "document",
    "compile.mode": "graph",
    "training.global_batch_size": 2,
    "training.steps": 10,
    "validator.interval": 5,
    "validator.samples": 2,
}


def train(model, folder, ranks, **degrees):
    """The losses of training and of validation by step."""
    pool.run(ranks, run_trainer, tiny(model, folder, CHANGES, **degrees))
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return {
        (name, record["step"]): record[name]
        for record in records
        for name in ("loss", "validation_loss")
        if name in record
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "ranks", "degrees"),
    [
        ("llama3", 2, {"cp": 2}),
        pytest.param("deepseek_v3", 4, {"cp": 2, "tp": 2, "method": "ulysses"}, marks=pytest.mark.long),
        pytest.param("qwen3_moe", 2, {"cp": 2, "ep": 2}, marks=pytest.mark.long),
    ],
)
def test_ten_steps_and_validation_follow_one_device(model, ranks, degrees, tmp_path):
    alone = train(model, tmp_path / "alone", 1)
    shared = train(model, tmp_path / "shared", ranks, **degrees)
    assert alone.keys() == shared.keys()
    assert {name for name, _ in alone} == {"loss", "validation_loss"} and len(alone) >= 12
    assert max(abs(shared[key] - value) / value for key, value in alone.items()) < 1e-5


def test_ranks_that_share_sequences_read_the_samples_of_one_device(tmp_path):
    changes = {"training.global_batch_size": 2}
    alone = pool.run(1, read_tokens, tiny("llama3", tmp_path, changes))[0]
    for found in pool.run(2, read_tokens, tiny("llama3", tmp_path, changes, cp=2)):
        assert found["part"] == (0, 1)
        assert all(torch.equal(one, other) for one, other in zip(found["tokens"], alone["tokens"], strict=True))


@pytest.mark.parametrize("degree", [1, pytest.param(2, marks=pytest.mark.long)])
def test_no_captured_value_has_scores_of_all_queries_and_keys(degree, tmp_path):
    """Latent attention's heads have no flash kernel on a CPU: a step captured there would show what no GPU keeps."""
    changes = {"model.mask": "document", "compile.mode": "graph", "training.seq_len": 60, "model.rope.max_seq_len": 64}
    config = tiny("deepseek_v3", tmp_path, {**changes, "model.n_layers": 2}, fsdp="graph", shard=1, cp=degree)
    with fake_groups(plan_run_mesh(config, degree), 0, torch.device("cpu")) as groups:
        graph = prepare(config, groups).capture()
    values = [value_of(node) for node in graph.nodes if is_compute(node)]
    shapes = [tuple(value.shape) for value in values if isinstance(value, torch.Tensor)]
    lengths = {60 // degree, 60}
    assert any(60 // degree in shape for shape in shapes)
    assert not [shape for shape in shapes if len(shape) > 2 and set(shape[-2:]) <= lengths]


ULYSSES, LATENT = {"method": "ulysses"}, {"gather": "latent"}


@pytest.mark.parametrize(
    ("model", "how", "least", "most"),
    [
        ("llama3", {}, 0.98, 1.02),
        pytest.param("llama3", ULYSSES, 0.98, 1.17, marks=pytest.mark.long),
        pytest.param("deepseek_v3", {"gather": "keys_values"}, 0.98, 1.02, marks=pytest.mark.long),
        pytest.param("deepseek_v3", ULYSSES, 0.98, 1.17, marks=pytest.mark.long),
        pytest.param("deepseek_v3", LATENT, 0.5, 0.98, marks=pytest.mark.long),
    ],
)
def test_saved_activations_shrink_with_the_degree(model, how, least, most, tmp_path):
    """What was gathered is not among them; an exchange keeps attention's output before and after it, and with fewer key
    heads than ranks copies of these. Keys and values that are made of gathered latents are not kept either."""
    saved = {degree: count_saved(model, tmp_path, how, degree) for degree in (1, 4)}
    assert least < saved[4] / (saved[1] / 4) < most


def count_saved(model, folder, how, degree):
    """Bytes that the blocks' forward leaves for backward, besides parameters."""
    changes = {"model.mask": "document", "compile.mode": "graph", "training.seq_len": 64}
    more = {"cp": degree, **how} if degree > 1 else {}
    config = tiny(model, folder, changes, fsdp="graph", shard=1, **more)
    with fake_groups(plan_run_mesh(config, degree), 0, torch.device("cpu")) as groups:
        graph = prepare(config, groups).capture()
    forward = {node for node in graph.nodes if is_compute(node) and not is_backward(node)}
    roots = find_storages(graph.module.graph)
    owners = {roots[node] for node in find_crossing(graph, forward).kept}
    tags = {owner: tag_of(owner) for owner in owners if is_compute(owner)}
    kept = [value_of(owner) for owner, tag in tags.items() if tag.block is not None and not tag.slot]
    assert len(kept) > 20
    return sum(value.numel() * value.element_size() for value in kept)
