"""A new run never writes over an old one."""

import json
import os
from types import SimpleNamespace

import pytest

from monograph.config.json_form import from_json
from monograph.errors import ConfigError
from monograph.run import train
from monograph.train.folder import claim_folder
from tests.train.kit import find_steps, read_records, tiny_run

ALONE = SimpleNamespace(rank=0, wait=lambda: None)


def test_a_fresh_run_moves_an_earlier_one_aside_with_everything_in_it(tmp_path):
    folder = tmp_path / "out"
    for steps in (1, 2, 3):
        train(tiny_run(folder, {"training.steps": steps}))
    assert len(read_records(folder)) == 3 and find_steps(folder) == [3]
    for number, steps in ((1, 1), (2, 2)):
        kept = tmp_path / f"out.{number}"
        assert len(read_records(kept)) == steps and find_steps(kept) == [steps]
        assert (kept / "config.json").exists()


def test_resuming_stays_in_the_folder(tmp_path):
    folder = tmp_path / "out"
    train(tiny_run(folder, {"training.steps": 1}))
    train(tiny_run(folder, {"training.steps": 2, "checkpoint.load": "latest"}))
    assert [record["step"] for record in read_records(folder)] == [1, 2]
    assert os.listdir(tmp_path) == ["out"]


def test_a_folder_without_a_run_is_left_where_it_is(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    claim_folder(tmp_path / "out", ALONE, is_resuming=False)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("inside", [".", "deeper"])
def test_the_folder_one_works_in_is_never_moved_away(tmp_path, monkeypatch, inside):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "metrics.jsonl").write_text("")
    monkeypatch.chdir(tmp_path / inside)
    with pytest.raises(ConfigError, match=r"(?s)working inside it.*--checkpoint.load latest"):
        claim_folder(tmp_path, ALONE, is_resuming=False)
    assert (tmp_path / "metrics.jsonl").exists()


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"job.dump_folder is .*file/out"):
        claim_folder(tmp_path / "file" / "out", ALONE, is_resuming=False)


def test_only_the_first_of_many_ranks_moves_anything(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("")
    claim_folder(folder, SimpleNamespace(rank=1, wait=lambda: None), is_resuming=False)
    assert os.listdir(tmp_path) == ["out"]


def test_the_config_that_made_a_run_lies_in_its_folder(tmp_path):
    config = tiny_run(tmp_path / "out", {"training.steps": 1, "optimizer.lr": 0.0123})
    train(config)
    saved = json.loads((tmp_path / "out" / "config.json").read_text())
    assert from_json(saved) == config
