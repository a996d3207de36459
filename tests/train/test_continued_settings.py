"""What a checkpoint was trained with is part of it: another model is refused, other settings are told."""

import json

import pytest

from monograph.errors import CheckpointError
from monograph.models.config import AttentionConfig
from monograph.run import train
from tests.kit.runs import read_records, tiny_run

CONTINUED = {"training.steps": 2, "checkpoint.load": "latest", "lr_scheduler.on_extend": "hold"}
SAME_SHAPES = {
    "model.rope.theta": 20_000.0,
    "model.norm_eps": 1e-2,
    "model.attention": AttentionConfig(n_heads=8, n_kv_heads=4, head_dim=8),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings") / "run"
    train(tiny_run(folder, {"training.steps": 1, "model.attention": AttentionConfig(n_heads=4, n_kv_heads=2)}))
    return folder


@pytest.mark.parametrize("model_only", [False, True], ids=["continued", "weights only"])
@pytest.mark.parametrize("field", SAME_SHAPES)
def test_weights_of_another_model_are_refused_by_the_fields_that_differ(run, tmp_path, field, model_only):
    changes = {**CONTINUED, "checkpoint.load": str(run / "checkpoints"), field: SAME_SHAPES[field]}
    config = tiny_run(tmp_path / "new", {**changes, "checkpoint.load_model_only": model_only})
    with pytest.raises(CheckpointError, match=rf"{field}.*: .* -> ") as error:
        train(config)
    assert "--checkpoint.allow_model_changes true" in error.value.do
    assert not (tmp_path / "new").exists()


def test_weights_of_another_model_are_taken_when_that_is_allowed(run, tmp_path):
    changes = {**CONTINUED, "checkpoint.load": str(run / "checkpoints"), "model.rope.theta": 20_000.0}
    train(tiny_run(tmp_path / "new", {**changes, "checkpoint.allow_model_changes": True}))
    assert [record["step"] for record in read_records(tmp_path / "new")] == [2]


def test_how_a_model_is_run_may_change(run, tmp_path):
    changes = {**CONTINUED, "checkpoint.load": str(run / "checkpoints"), "model.dropout": 0.1}
    train(tiny_run(tmp_path / "new", {**changes, "model.kernels": "plain", "model.rope.max_seq_len": 128}))


def test_changed_settings_are_told_and_kept_with_the_run(tmp_path, capsys):
    folder = tmp_path / "run"
    train(tiny_run(folder, {"training.steps": 1}))
    changed = {"optimizer.lr": 0.01, "training.max_norm": 0.5, "debug.log_level": "info"}
    train(tiny_run(folder, {**CONTINUED, **changed}))
    said = capsys.readouterr().err
    assert "saved run -> this run: optimizer.lr: 0.001 -> 0.01" in said
    assert "saved run -> this run: training.max_norm: 1.0 -> 0.5" in said
    assert "saved run -> this run: training.steps: 1 -> 2" in said
    history = [json.loads(line) for line in (folder / "config.history.jsonl").read_text().splitlines()]
    assert history[0]["changes"] == [] and "optimizer.lr: 0.001 -> 0.01" in history[1]["changes"]
    assert "saved run -> this run: optimizer.lr" in (folder / "logs" / "rank-0.log").read_text()


def test_a_run_that_goes_on_unchanged_has_no_changes_to_tell(tmp_path, capsys):
    config = {"training.steps": 1, "debug.log_level": "info"}
    train(tiny_run(tmp_path / "run", config))
    train(tiny_run(tmp_path / "run", {**config, "checkpoint.load": "latest"}))
    assert "saved run ->" not in capsys.readouterr().err
