"""A new run never writes over an old one, and two runs never share a folder."""

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from monograph.cli import main
from monograph.config.json_form import from_json
from monograph.errors import CheckpointError, ConfigError, MonographError
from monograph.locks.folder_lock import FolderLock, FolderMoved
from monograph.run import train
from monograph.train.folder import RunStart, reserved_folder
from tests.kit.ranks import pool
from tests.kit.runs import find_steps, open_trainer, read_exact, read_records, tiny_run
from tests.parallel.rank_work import claim as claim_on_rank
from tests.train.processes import KILLED, finish, kill, run, start, wait_until

ALONE = SimpleNamespace(rank=0, broadcast_object=lambda value: value)
ENDLESS = {"training.steps": 1_000_000, "checkpoint.interval": 5, "checkpoint.keep_last": 2}


def claim(folder, groups=ALONE, **changes):
    """Claim a folder and give it back."""
    with reserved_folder(tiny_run(folder, changes), groups) as reserved:
        reserved.claim(groups, RunStart())


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
    claim(tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("inside", [".", "deeper"])
def test_the_folder_one_works_in_is_never_moved_away(tmp_path, monkeypatch, inside):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "metrics.jsonl").write_text("")
    monkeypatch.chdir(tmp_path / inside)
    with pytest.raises(ConfigError, match=r"(?s)working inside it.*--checkpoint.load latest"):
        claim(tmp_path)
    assert (tmp_path / "metrics.jsonl").exists()


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"job.dump_folder is .*file/out"):
        claim(tmp_path / "file" / "out")


def test_only_the_first_of_many_ranks_moves_anything(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("")
    claim(folder, SimpleNamespace(rank=1, broadcast_object=lambda value: value))
    assert os.listdir(tmp_path) == ["out"]


def test_the_config_that_made_a_run_lies_in_its_folder(tmp_path):
    config = tiny_run(tmp_path / "out", {"training.steps": 1, "optimizer.lr": 0.0123})
    train(config)
    saved = json.loads((tmp_path / "out" / "config.json").read_text())
    assert from_json(saved) == config


def test_a_run_that_starts_from_its_own_folder_keeps_the_tokenizer(tmp_path):
    kept = tmp_path / "out" / "tokenizer"
    kept.mkdir(parents=True)
    (tmp_path / "out" / "metrics.jsonl").write_text("")
    (kept / "tokenizer.json").write_text("{}")
    claim(tmp_path / "out", **{"tokenizer.path": str(kept)})
    assert not (tmp_path / "out" / "metrics.jsonl").exists(), "the earlier run is moved aside"
    assert (kept / "tokenizer.json").read_text() == "{}"


def last_step(folder):
    try:
        return read_records(folder)[-1]["step"]
    except (FileNotFoundError, IndexError):
        return 0


@pytest.fixture
def running(tmp_path):
    """A run in `tmp_path / "run"` that goes on until it is killed."""
    process = start(tiny_run(tmp_path / "run", ENDLESS))
    wait_until(lambda: last_step(tmp_path / "run") >= 6, process)
    yield process
    process.kill()
    process.join()


@pytest.mark.parametrize(
    "changes",
    [{}, {"checkpoint.load": "latest"}, pytest.param({"checkpoint.load": "auto"}, marks=pytest.mark.long)],
    ids=str,
)
def test_a_folder_in_use_is_refused_with_process_and_host_and_the_run_goes_on(tmp_path, running, changes):
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match=rf"job.dump_folder is .*run.* \(process {running.pid} on ") as error:
        train(tiny_run(folder, changes))
    assert "--job.dump_folder" in error.value.do
    before = last_step(folder)
    wait_until(lambda: last_step(folder) > before + 12, running)
    assert os.listdir(tmp_path) == ["run"]
    steps = [record["step"] for record in read_records(folder)]
    assert steps == list(range(1, steps[-1] + 1)), "one run's steps, each once"
    assert len(find_steps(folder)) <= 3 and all(step % 5 == 0 for step in find_steps(folder))


def test_a_run_that_is_stopped_still_has_its_folder(tmp_path, running):
    os.kill(running.pid, signal.SIGSTOP)
    try:
        with pytest.raises(ConfigError, match=f"process {running.pid} on "):
            train(tiny_run(tmp_path / "run"))
    finally:
        os.kill(running.pid, signal.SIGCONT)
    before = last_step(tmp_path / "run")
    wait_until(lambda: last_step(tmp_path / "run") > before, running)


def test_a_killed_run_leaves_its_folder_to_the_next(tmp_path, running):
    assert kill(running) == KILLED
    done = find_steps(tmp_path / "run")[-1]
    summary = train(tiny_run(tmp_path / "run", {"training.steps": done + 2, "checkpoint.load": "latest"}))
    assert summary.steps == done + 2
    train(tiny_run(tmp_path / "run", {"training.steps": 1}))
    assert sorted(os.listdir(tmp_path)) == ["run", "run.1"]


def test_a_run_whose_folder_is_moved_ends_and_writes_nothing_into_its_successors(tmp_path):
    """The classic: rename the folder of a running run and start another one under the same name."""
    folder = tmp_path / "run"
    with open_trainer(tiny_run(folder, {"training.steps": 6, "checkpoint.interval": 1})) as trainer:
        step = trainer._one_step

        def move_before_the_fourth(number, *rest):
            if number == 4:
                folder.rename(tmp_path / "moved")
                assert run(tiny_run(folder)) == 0
            step(number, *rest)

        trainer._one_step = move_before_the_fourth
        with pytest.raises(FolderMoved, match="run was moved or deleted") as error:
            trainer.train()
    assert str(tmp_path / "moved") in error.value.why
    assert find_steps(tmp_path / "moved") == [1, 2, 3] and find_steps(folder) == [3]
    assert [record["step"] for record in read_records(folder)] == [1, 2, 3]


def test_a_checkpoint_is_never_committed_into_a_folder_that_replaced_its_own(tmp_path):
    folder = tmp_path / "run"
    with open_trainer(tiny_run(folder)) as trainer:
        step = trainer._one_step

        def move_before_the_first(number, *rest):
            if number == 1:
                (folder / "checkpoints").rename(tmp_path / "moved")
                (folder / "checkpoints").mkdir()
            step(number, *rest)

        trainer._one_step = move_before_the_first
        with pytest.raises(FolderMoved, match="checkpoints was moved or deleted"):
            trainer.train()
    assert os.listdir(folder / "checkpoints") == []


def test_a_command_whose_folder_is_deleted_ends_without_a_traceback(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("monograph.train.folder.FolderLock.check", raise_moved)
    flags = ["--training.steps", "2", "--training.seq_len", "32", "--model.n_layers", "1", "--model.dim", "64"]
    assert main(["train", "llama3_debugmodel", *flags, "--job.dump_folder", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert "gone" in said and "Traceback" not in said


def raise_moved(_):
    raise FolderMoved("it is gone")


def test_every_rank_of_a_run_learns_at_once_that_its_folder_is_in_use(tmp_path):
    config = tiny_run(tmp_path / "run", {"parallelism.timeout_seconds": 120.0})
    train(config)
    lock = FolderLock(tmp_path / "run")
    lock.acquire()
    before = time.monotonic()
    try:
        told = pool.run(2, claim_on_rank, config)
    finally:
        lock.release()
    assert time.monotonic() - before < 60
    assert told[0] == told[1] and f"process {os.getpid()} on " in told[0]
    assert os.listdir(tmp_path) == ["run"], "the earlier run was not moved aside"


def test_checkpoints_kept_elsewhere_are_refused_before_anything_is_moved(tmp_path):
    shared = {"checkpoint.folder": str(tmp_path / "shared")}
    train(tiny_run(tmp_path / "two", {"training.steps": 1}))
    process = start(tiny_run(tmp_path / "one", ENDLESS | shared))
    wait_until(lambda: last_step(tmp_path / "one") >= 1, process)
    try:
        with pytest.raises(CheckpointError, match=f"another run is writing checkpoints to .*process {process.pid}"):
            train(tiny_run(tmp_path / "two", shared))
    finally:
        process.kill()
        finish(process)
    assert not (tmp_path / "two.1").exists()


def test_two_that_start_at_once_do_not_both_get_the_folder(tmp_path):
    """Also not while one of them moves an earlier run aside."""
    folder = tmp_path / "run"
    train(tiny_run(folder, {"training.steps": 1}))
    runs = [start(tiny_run(folder, {"training.steps": 40})) for _ in range(3)]
    codes = sorted(finish(each) for each in runs)
    folders = sorted(tmp_path.iterdir())
    assert codes.count(0) == len(folders) - 1, "every run that was let in has a folder of its own"
    for each in folders:
        steps = [record["step"] for record in read_records(each)]
        assert steps in ([1], list(range(1, 41)))


def test_a_folder_that_cannot_be_moved_aside_is_refused_by_name(tmp_path, monkeypatch):
    train(tiny_run(tmp_path / "run", {"training.steps": 1}))

    def refuse(*_):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr("pathlib.Path.rename", refuse)
    with pytest.raises(ConfigError, match=r"(?s)job.dump_folder is .*run.*busy"):
        claim(tmp_path / "run")
    FolderLock(tmp_path / "run").acquire()


def test_what_was_moved_aside_says_how_to_continue_it_and_that_works(tmp_path, capsys):
    config = tiny_run(tmp_path / "run", {"training.steps": 2, "debug.log_level": "info"})
    train(config)
    before = read_exact(tmp_path / "run")
    train(config)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "an earlier run was in" in line]
    flags = said.partition("to continue it: ")[2].rstrip(")").split()
    assert flags[::2] == ["--job.dump_folder", "--checkpoint.load"]
    summary = train(tiny_run(flags[1], {"training.steps": 3, "checkpoint.load": flags[3]}))
    assert summary.steps == 3 and read_exact(tmp_path / "run.1")[:2] == before


def listing(folder):
    """Every file below a folder with its content."""
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


FAILED_STARTS = {
    "a dataset that is not there": {"dataloader.dataset": "no/such/file.txt"},
    "a tokenizer that is not there": {"tokenizer.path": "no/such/tokenizer.json"},
    "a checkpoint that is not there": {"checkpoint.load": "no/such/checkpoint"},
    "a model that cannot be built": {"training.freeze": ("no.such.weight",)},
    "data shorter than a sequence": {"dataloader.dataset": "short.txt", "dataloader.held_out_fraction": 0.0},
}


@pytest.mark.parametrize("changes", FAILED_STARTS.values(), ids=FAILED_STARTS)
@pytest.mark.parametrize("has_run", [True, False], ids=["over a good run", "in a new folder"])
def test_a_start_that_fails_leaves_everything_as_it_was(tmp_path, monkeypatch, changes, has_run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("a")
    folder = tmp_path / "deep" / "run"
    if has_run:
        train(tiny_run(folder, {"training.steps": 1}))
    before = listing(tmp_path)
    for _ in range(2):
        with pytest.raises(MonographError):
            train(tiny_run(folder, changes))
    assert listing(tmp_path) == before
    assert (tmp_path / "deep").exists() == has_run and not (tmp_path / "deep" / "run.1").exists()


def test_the_log_file_of_a_run_begins_with_its_start(tmp_path):
    train(tiny_run(tmp_path / "run", {"training.steps": 1, "debug.log_level": "info"}))
    said = (tmp_path / "run" / "logs" / "rank-0.log").read_text()
    assert "data: train:" in said and "saved " in said


def test_weights_of_a_folders_run_start_another_one_beside_it(tmp_path):
    """Both runs save a checkpoint of step 3: the older one is kept, whole, with its metrics and its configuration."""
    folder = tmp_path / "run"
    train(tiny_run(folder))
    before = listing(folder)
    changes = {"checkpoint.load": "latest", "checkpoint.load_model_only": True}
    train(tiny_run(folder, changes))
    kept = listing(tmp_path / "run.1")
    del before[Path(".lock")], kept[Path(".lock")]
    assert kept == before
    assert find_steps(folder) == [3] and not (folder / "metrics.jsonl.1").exists()


def test_a_checkpoint_from_elsewhere_does_not_continue_the_run_that_lies_in_the_folder(tmp_path):
    for name in ("one", "two"):
        train(tiny_run(tmp_path / name, {"training.steps": 1}))
    load = str(tmp_path / "one" / "checkpoints" / "step-00000001")
    train(tiny_run(tmp_path / "two", {"training.steps": 2, "checkpoint.load": load}))
    assert find_steps(tmp_path / "two.1") == [1] and find_steps(tmp_path / "two") == [2]


def test_every_start_of_a_run_is_a_line_of_its_history(tmp_path):
    folder = tmp_path / "run"
    train(tiny_run(folder, {"training.steps": 1}))
    train(tiny_run(folder, {"training.steps": 1, "checkpoint.load": "latest", "job.description": "again"}))
    first, second = [json.loads(line) for line in (folder / "config.history.jsonl").read_text().splitlines()]
    assert (first["step"], first["loaded"]) == (0, "") and first["config"]["job"]["description"] == ""
    assert second["step"] == 1 and second["loaded"].endswith("step-00000001")
    assert from_json(second["config"]).job.description == "again"


@pytest.mark.parametrize("name", ["metrics.jsonl", "goodput.jsonl", "config.history.jsonl", "logs/rank-0.log"])
def test_a_run_does_not_go_on_in_a_folder_whose_lines_are_links(tmp_path, name):
    train(tiny_run(tmp_path / "out", {"training.steps": 1}))
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "out" / name).unlink(missing_ok=True)
    (tmp_path / "out" / name).symlink_to(tmp_path / "notes")
    with (
        reserved_folder(tiny_run(tmp_path / "out"), ALONE) as reserved,
        pytest.raises(ConfigError, match="cannot be added to"),
    ):
        reserved.claim(ALONE, RunStart(is_continued=True))
    assert (tmp_path / "notes").read_text() == "mine"
