"""A new run moves aside or writes over what a run has left, and nothing else; data stay on their disk."""

import errno
import os
from pathlib import Path

import pytest

from monograph.errors import ConfigError
from monograph.run import train
from monograph.train.launch_logs import LaunchLogs, adopt_launch_logs
from tests.kit.runs import find_steps, read_records, tiny_run
from tests.train.test_folder import claim, listing

FOREIGN = {
    "a web project": {"config.json": '{"name": "shop"}', "src/index.js": "x"},
    "a Hugging Face model": {"config.json": '{"model_type": "llama"}', "model.safetensors": "x"},
    "a model's own configuration": {"config.json": '{"$class": "monograph.models.llama3.config:Llama3Config"}'},
    "a configuration that cannot be read": {"config.json": "[" * 5000},
    "another program's metrics": {"metrics.jsonl": '{"step": 1, "loss": 2.0}\n'},
    "another program's numerics": {"numerics.txt": "3.14"},
    "another tokenizer": {"tokenizer/tokenizer.json": '{"model": {}}'},
}


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    return path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("load", ["", "auto"])
def test_a_folder_that_no_run_has_left_is_refused_and_stays(tmp_path, tokenizer, files, load):
    folder = tmp_path / "project"
    write(folder, files)
    before = listing(tmp_path)
    with pytest.raises(ConfigError, match=r"(?s)job.dump_folder is .*project.*choose another --job.dump_folder"):
        claim(folder, **{"tokenizer.path": str(tokenizer), "checkpoint.load": load})
    assert listing(tmp_path) == before


def test_a_configuration_that_is_a_fifo_is_refused_and_does_not_hang(tmp_path):
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / "config.json")
    with pytest.raises(ConfigError, match="not a regular file"):
        claim(tmp_path / "run")


def test_what_a_full_disk_left_of_a_run_is_no_hindrance(tmp_path):
    """Its configuration could not be written."""
    train(tiny_run(tmp_path / "run", {"training.steps": 1, "checkpoint.enabled": False}))
    (tmp_path / "run" / "config.json").unlink()
    claim(tmp_path / "run")
    assert len(read_records(tmp_path / "run.1")) == 1
    write(tmp_path / "other", {"metrics.jsonl": "", "config.history.jsonl": "", "logs/rank-0.log": "no space"})
    claim(tmp_path / "other")
    assert (tmp_path / "other.1" / "metrics.jsonl").exists()


def test_a_tokenizer_is_not_written_where_a_link_leads(tmp_path, tokenizer):
    """The link may come with a run folder from elsewhere."""
    train(tiny_run(tmp_path / "run", {"training.steps": 1}))
    write(tmp_path / "precious", {"tokenizer.json": "mine"})
    (tmp_path / "run" / "tokenizer").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match="another tokenizer's"):
        claim(tmp_path / "run", **{"tokenizer.path": str(tokenizer), "checkpoint.load": "latest"})
    (tmp_path / "precious" / "tokenizer.json").rename(tmp_path / "precious" / "notes.json")
    with pytest.raises(ConfigError, match=r"is a link, and the tokenizer would be written where it leads"):
        claim(tmp_path / "run", **{"tokenizer.path": str(tokenizer), "checkpoint.load": "latest"})
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["notes.json"]


def test_a_folder_on_another_disk_stays_there_when_a_new_run_takes_its_name(tmp_path):
    big = tmp_path / "big"
    big.mkdir()
    link = tmp_path / "out"
    link.symlink_to(big / "out")  # leads to nothing yet
    for steps in (1, 2):
        train(tiny_run(link, {"training.steps": steps}))
    assert link.readlink() == big / "out" and sorted(path.name for path in big.iterdir()) == ["out", "out.1"]
    assert find_steps(big / "out") == [2] and find_steps(big / "out.1") == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big", "out"]


def test_a_folder_behind_a_link_that_a_failed_start_made_is_taken_away(tmp_path):
    (tmp_path / "out").symlink_to(tmp_path / "big" / "out")
    with pytest.raises(ConfigError):
        train(tiny_run(tmp_path / "out", {"training.freeze": ("no.such.weight",)}))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_link_that_was_made_for_the_checkpoints_of_a_run_to_come_is_used(tmp_path):
    (tmp_path / "big").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "big")
    train(tiny_run(tmp_path / "run", {"training.steps": 1}))
    assert (tmp_path / "big" / "step-00000001").is_dir() and not (tmp_path / "run.1").exists()


def test_logs_on_another_disk_do_not_end_a_start(tmp_path, monkeypatch):
    """The ranks go on writing to their files, so these stay on the disk where they were opened."""
    logs = LaunchLogs(tmp_path, "20261119-abcd")
    logs.make()
    (logs.path / "0.log").write_text("said")
    real = Path.rename

    def refuse(self, target):
        if Path(target).parent.name == "logs":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return real(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    adopt_launch_logs(tmp_path, moved_to=None)
    assert (logs.path / "0.log").read_text() == "said", "torch's launcher knows it by this name"
    kept = logs.settle(is_kept=False)
    assert kept == tmp_path and (tmp_path / "launch-20261119-abcd" / "0.log").read_text() == "said"


def test_a_folder_for_logs_that_somebody_else_has_made_is_not_taken(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / ".launch-20261119-abcd").symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError):
        LaunchLogs(tmp_path, "20261119-abcd").make()
