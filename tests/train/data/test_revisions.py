"""A run reads one commit of a dataset on the hub: on all ranks, and after every restart."""

import huggingface_hub
import pytest

from monograph.errors import DataError
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.dataset_name import choose_source
from monograph.train.data.revisions import Revisions, find_commit
from tests.kit.runs import open_trainer, read_values, tiny_run

COMMITS = {"web": "a" * 40, "code": "b" * 40}
ROWS = [{"text": f"row {number} " * 30} for number in range(200)]


def choose(**settings):
    return choose_source(DataLoaderConfig(**settings))


def test_a_branch_is_looked_up_once_and_a_commit_never():
    asked = []
    pins = Revisions(look_up=lambda name, revision: asked.append((name, revision)) or COMMITS[name])
    mixture = pins.pin(choose(mixture=("one=1:hf:web", "two=1:hf:code", "three=1:builtin"), hf_revision="v1"))
    assert [part.source.revision for part in mixture.parts[:2]] == list(COMMITS.values())
    assert pins.pin(choose(dataset="hf:web", hf_revision="v1")).revision == COMMITS["web"]
    assert pins.pin(choose(dataset="hf:web", hf_revision="c" * 40)).revision == "c" * 40
    assert asked == [("web", "v1"), ("code", "v1")]
    assert pins.found == {"web@v1": COMMITS["web"], "code@v1": COMMITS["code"]}


def test_a_run_goes_on_with_the_commit_it_began_with_when_the_branch_has_moved(tmp_path, monkeypatch):
    opened = []

    def open_hub(name, *, subset, split, revision):
        opened.append(revision)
        return lambda: [lambda: iter(ROWS)]

    monkeypatch.setattr("monograph.train.data.sources.open_hub", open_hub)
    settings = {"dataloader.dataset": "hf:web", "lr_scheduler.total_steps": 4}
    settings |= {"dataloader.validation_datasets": ("hf:code",), "validator.interval": 2, "validator.samples": 2}
    for steps, commit in ((2, "a" * 40), (4, "b" * 40)):
        monkeypatch.setattr("monograph.train.open_data.find_commit", lambda name, revision, commit=commit: commit)
        changes = {**settings, "training.steps": steps, "checkpoint.load": "auto"}
        with open_trainer(tiny_run(tmp_path, changes)) as trainer:
            trainer.train()
        assert read_values(tmp_path, steps)["data"]["revisions"] == {"web@main": "a" * 40}
        assert read_values(tmp_path, steps)["revisions"] == {"web@main": "a" * 40, "code@main": "a" * 40}
    assert set(opened) == {"a" * 40}


def test_a_local_copy_has_no_commit_and_its_files_are_its_version(tmp_path, monkeypatch):
    (tmp_path / "rows.jsonl").write_text("{}")
    assert find_commit(str(tmp_path), "") == ""
    before = choose(dataset=f"hf:{tmp_path}").build
    monkeypatch.setattr("monograph.train.data.sources.open_hub", lambda *_, **__: lambda: [lambda: iter(ROWS)])
    identity = before().identity()
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "rows.jsonl.metadata").write_text("1763.25")
    assert before().identity() == identity, "what a download notes for itself is no data"
    (tmp_path / "rows.jsonl").write_text("{ }")
    assert before().identity() != identity


def test_a_name_that_cannot_be_looked_up_is_refused_in_words(monkeypatch):
    def fail(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", fail)
    with pytest.raises(DataError, match="cannot look up 'hf:someone/something'") as error:
        find_commit("someone/something", "")
    assert "no route" in error.value.why and "commit" in error.value.do
