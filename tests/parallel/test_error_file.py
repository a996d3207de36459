"""A rank's note for the launcher: whole, or not there."""

import json
import os

import pytest

from monograph.parallel.error_file import VARIABLE, record_failure


def interrupt(*_args, **_options):
    raise KeyboardInterrupt


def test_a_note_is_json_that_names_the_error(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "error.json"))
    record_failure(ValueError("planted"))
    assert "planted" in json.dumps(json.loads((tmp_path / "error.json").read_text()))
    assert os.environ[VARIABLE] == str(tmp_path / "error.json")
    assert [path.name for path in tmp_path.iterdir()] == ["error.json"]


def test_a_rank_that_is_ended_while_it_writes_leaves_no_half_note(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "error.json"))
    monkeypatch.setattr("json.dump", interrupt)
    monkeypatch.setattr("json.dumps", interrupt)
    with pytest.raises(KeyboardInterrupt):
        record_failure(ValueError("planted"))
    assert not (tmp_path / "error.json").exists()


def test_without_a_launcher_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    record_failure(ValueError("planted"))
    assert list(tmp_path.iterdir()) == []
