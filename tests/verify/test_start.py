"""`verify` starts from weights and buffers that differ from each other: a norm of ones hides what is done with it."""

from unittest.mock import patch

import pytest
import torch

import monograph.verify.run
import monograph.verify.start
from monograph.models.init import initialize, materialize
from monograph.verify.reference import buffers_of
from monograph.verify.start import spread_model
from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.verify.on_ranks import verify_on_ranks

NORM = "layers.0.attention_norm.weight"


@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3", "gemma3"])
def test_no_weight_and_no_buffer_is_all_alike(family, tmp_path):
    config = tiny(family, tmp_path)
    with torch.device("meta"):
        model = config.model.for_length(config.training.seq_len).build()
    materialize(model, device=torch.device("cpu"), dtype=torch.float32)
    initialize(model, seed=0)
    before = {name: value.clone() for name, value in model.named_parameters()}
    assert find_alike(model)
    spread_model(model, 0)
    assert find_alike(model) == []
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert all(value.dim() < 2 or "bias" in name for name, value in before.items() if name in moved)


def find_alike(model):
    """Names of what has one value all over."""
    values = dict(model.named_parameters()) | buffers_of(model)
    return [name for name, value in values.items() if value.numel() > 1 and (value == value.flatten()[0]).all()]


def verify_without_a_norm(config, spread):
    """The mesh computes as if a frozen norm were 1."""
    honest = monograph.verify.run.spread_shards

    def forget(step, seed):
        honest(step, seed)
        with torch.no_grad():
            step.parameters[NORM].fill_(1.0)

    with (
        patch.object(monograph.verify.start, "SPREAD", spread),
        patch.object(monograph.verify.run, "spread_shards", forget),
    ):
        return verify_on_ranks(config)


@pytest.mark.parametrize("fsdp", ["graph", "fsdp2"])
def test_a_frozen_norm_that_is_forgotten_is_found(fsdp, tmp_path):
    config = tiny("llama3", tmp_path, {"training.freeze": ("layers.*norm*",)}, fsdp=fsdp)
    blind = pool.run(2, verify_without_a_norm, config, 0.0)[0]
    assert blind.is_equal, "from ones it cannot be seen"
    verdict = pool.run(2, verify_without_a_norm, config, 0.1)[0]
    assert not verdict.is_equal and verdict.blame.startswith("layers.0.attention_norm"), verdict.blame
