"""Checkpoints know nothing of pipelines: what any number of stages saved, any other continues, to the bit."""

import json

import pytest
import torch

from monograph.train.checkpoint.verify import verify_checkpoint
from tests.kit.ranks import pool
from tests.kit.runs import read_step
from tests.kit.tiny import tiny
from tests.parallel.pipeline.pipeline_work import train_once

STEPS = {
    "compile.mode": "graph",
    "model.n_layers": 5,
    "training.global_batch_size": 4,
    "checkpoint.interval": 1,
    "checkpoint.keep_last": 10,
    "checkpoint.load": "auto",
    "lr_scheduler.decay": "constant",
    "lr_scheduler.warmup_steps": 0,
    "debug.deterministic": True,
}


def train(folder, ranks, steps, model="deepseek_v3", **degrees):
    named = {"pipeline_parallel_degree": ranks, **degrees} if ranks > 1 else {}
    config = tiny(model, folder, {**STEPS, "training.steps": steps}, **named)
    return pool.run(ranks, train_once, config)


def read_losses(folder):
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: (record["loss"], record["grad_norm"]) for record in records if "loss" in record}


@pytest.mark.long
def test_a_run_moves_between_one_two_and_four_stages_bit_for_bit(tmp_path):
    train(tmp_path / "alone", 1, 5)
    moved = tmp_path / "moved"
    train(moved, 2, 1)
    train(moved, 4, 2, pipeline_schedule="zero_bubble")
    train(moved, 1, 3)
    train(moved, 2, 4, pipeline_schedule="zbv")
    train(moved, 2, 5, pipeline_schedule="interleaved_1f1b")
    assert read_losses(moved) == read_losses(tmp_path / "alone")
    for step in (1, 2, 5):
        ours, theirs = (read_step(folder / "run", step) for folder in (moved, tmp_path / "alone"))
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_a_tied_matrix_that_two_ranks_hold_is_saved_once(tmp_path):
    train(tmp_path, 2, 1, model="qwen3")
    manifest = verify_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000001")
    assert len(manifest.tensors["model/embedding.weight"].chunks) == 1
    assert "model/head.output.weight" not in manifest.tensors
