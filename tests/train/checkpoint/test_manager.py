"""Keeping the last few checkpoints, finding the one that was asked for, and refusing one that does not fit."""

import logging
import os
import subprocess
import sys

import pytest
import torch

from monograph.errors import CheckpointError, ConfigError
from monograph.train.checkpoint import manager, manifest_file
from monograph.train.checkpoint.config import CheckpointConfig
from monograph.train.checkpoint.manager import CheckpointManager
from tests.train.checkpoint.disks import blank, find_names, find_steps, make_manager, make_state, same, save_steps

# Keeping the last few


@pytest.mark.parametrize("async_save", [False, True])
def test_the_last_few_are_kept(tmp_path, async_save):
    save_steps(tmp_path, *range(1, 7), keep_last=2, async_save=async_save)
    assert find_steps(tmp_path) == [5, 6]


def test_the_manager_knows_what_it_saved_last(tmp_path):
    with make_manager(tmp_path, async_save=True) as manager:
        assert manager.last_saved is None
        manager.save(4, make_state(4), {})
        manager.wait()
        assert manager.last_saved == tmp_path / "step-00000004"


def test_all_are_kept_when_no_number_is_given(tmp_path):
    save_steps(tmp_path, *range(1, 7), keep_last=0)
    assert find_steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_resumed_run_goes_on_counting(tmp_path):
    save_steps(tmp_path, 1, 2, keep_last=2)
    with make_manager(tmp_path, keep_last=2, load="latest") as manager:
        manager.resume(blank(make_state(1)))
        manager.save(3, make_state(3), {})
    assert find_steps(tmp_path) == [2, 3]


def test_checkpoints_of_another_run_are_not_deleted(tmp_path):
    save_steps(tmp_path, 10, 20)
    save_steps(tmp_path, 1, 2, 3, keep_last=1)
    assert find_steps(tmp_path) == [3, 10, 20]


def test_latest_is_what_was_saved_last_even_at_an_earlier_step(tmp_path):
    save_steps(tmp_path, 10, 20)
    with make_manager(tmp_path) as manager:
        live = blank(make_state(1))
        manager.load(10, live)
        manager.save(11, make_state(11), {})
        assert manager.latest() == tmp_path / "step-00000011"
        assert manager.load("latest", live).step == 11


def test_a_damaged_checkpoint_is_never_deleted(tmp_path):
    save_steps(tmp_path, 1, keep_last=1)
    (tmp_path / "step-00000001" / "manifest.json").write_text("broken")
    save_steps(tmp_path, 2, 3, keep_last=1)
    assert find_steps(tmp_path) == [1, 3]


def test_saving_reads_each_checkpoint_once_and_lists_no_tensors(tmp_path, monkeypatch):
    """On the first rank, while all others wait: with many ranks a list of tensors takes seconds to read."""
    save_steps(tmp_path, 1, 2, keep_last=0)
    read = []
    monkeypatch.setattr(manager, "read_head", lambda path: (read.append(path.name), manifest_file.read_head(path))[1])
    monkeypatch.setattr(manifest_file, "parse_manifest", None)
    with make_manager(tmp_path, keep_last=2) as saving:
        for step in (3, 4, 5, 6):
            saving.save(step, make_state(step), {})
    assert sorted(read) == sorted({*read}) == [f"step-{step:08d}" for step in range(1, 7)]
    assert find_steps(tmp_path) == [1, 2, 5, 6], "those of another run stay"


# Finding what was asked for


def test_a_checkpoint_can_be_asked_for_by_step_by_path_and_as_latest(tmp_path):
    save_steps(tmp_path, 1, 2, 3, keep_last=0)
    requests = {"latest": 3, "auto": 3, 2: 2, "2": 2, "00000002": 2, tmp_path / "step-00000001": 1, tmp_path: 3}
    requests |= {str(tmp_path / "step-00000001"): 1}
    with make_manager(tmp_path) as manager:
        for which, step in requests.items():
            live = blank(make_state(1))
            loaded = manager.load(which, live)
            assert (loaded.step, loaded.values) == (step, {"step": step})
            assert loaded.path == tmp_path / f"step-{step:08d}"
            assert same(live, make_state(step))


def test_a_checkpoint_of_another_run_can_be_loaded_by_its_path(tmp_path):
    save_steps(tmp_path / "other", 5)
    with make_manager(tmp_path / "mine") as manager:
        live = blank(make_state(5))
        assert manager.load(tmp_path / "other", live).step == 5
    assert same(live, make_state(5))


def test_what_does_not_exist_is_an_error_that_says_what_does(tmp_path):
    save_steps(tmp_path, 1, 2)
    with make_manager(tmp_path) as manager:
        live = blank(make_state(1))
        for which in (9, "9", str(tmp_path / "step-00000009"), tmp_path / "nothing", tmp_path.parent / "elsewhere"):
            with pytest.raises(CheckpointError) as caught:
                manager.load(which, live)
            assert "step-00000001, step-00000002" in str(caught.value)
            assert "9" in caught.value.what or "nothing" in caught.value.what or "elsewhere" in caught.value.what
        assert same(live, blank(make_state(1)))


def test_latest_of_nothing_is_an_error_and_auto_starts_from_scratch(tmp_path):
    with make_manager(tmp_path / "a", load="latest") as manager:
        assert manager.latest() is None
        with pytest.raises(CheckpointError, match="no intact checkpoint"):
            manager.resume({})
    with make_manager(tmp_path / "b", load="auto") as manager:
        assert manager.resume({}) is None
        manager.save(1, make_state(1), {})
        live = blank(make_state(1))
        assert manager.resume(live).step == 1
    with make_manager(tmp_path / "b") as manager:
        assert manager.resume(live) is None, "an empty `load` starts from scratch"


# What is loaded must fit


def change(name: str, tensor: torch.Tensor | None) -> dict[str, torch.Tensor]:
    state = blank(make_state(1))
    if tensor is None:
        del state[name]
    else:
        state[name] = tensor
    return state


@pytest.mark.parametrize(
    ("live", "complaint"),
    [
        (change("model/new", torch.zeros(1)), "missing in the checkpoint: model/new"),
        (change("rng/cpu", None), "in the checkpoint but not in this run: rng/cpu"),
        (change("rng/cpu", torch.zeros(3, dtype=torch.uint8)), r"rng/cpu has shape \[24\] there and \[3\] here"),
        (change("data/counts", torch.zeros(5)), "data/counts is int64 there and float32 here"),
        (change("model/embedding.weight", torch.zeros(4, 6)), r"shape \[6, 4\] there and \[4, 6\] here"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_before_anything_is_touched(tmp_path, live, complaint):
    save_steps(tmp_path, 1)
    before = {name: tensor.clone() for name, tensor in live.items()}
    with make_manager(tmp_path) as manager, pytest.raises(CheckpointError, match=complaint):
        manager.load("latest", live)
    assert same(live, before)


def test_long_lists_of_differences_are_cut(tmp_path):
    save_steps(tmp_path, 1)
    live = {f"x{index}": torch.zeros(1) for index in range(9)}
    with make_manager(tmp_path) as manager, pytest.raises(CheckpointError, match="x0, x1, x2, x3, x4 and 4 more"):
        manager.load(1, live)


def test_weights_alone_can_be_loaded_into_a_new_run(tmp_path):
    save_steps(tmp_path / "old", 8)
    live = blank(make_state(1))
    live["model/head.output.weight"] = torch.zeros(6, 4)  # trained in more bits than it was saved in
    with make_manager(tmp_path / "new", load=str(tmp_path / "old"), load_model_only=True) as manager:
        loaded = manager.resume(live)
    assert (loaded.step, loaded.values, loaded.model_only) == (0, {}, True)
    saved = make_state(8)
    assert live["model/embedding.weight"].equal(saved["model/embedding.weight"])
    assert live["model/head.output.weight"].equal(saved["model/head.output.weight"].float())
    rest = {name: tensor for name, tensor in live.items() if not name.startswith("model/")}
    assert same(rest, {name: tensor for name, tensor in blank(saved).items() if not name.startswith("model/")})


def test_loading_weights_alone_still_asks_for_all_of_them(tmp_path):
    save_steps(tmp_path, 8)
    for live in (change("model/new", torch.zeros(1)), change("model/embedding.weight", None)):
        manager = make_manager(tmp_path, load="latest", load_model_only=True)
        with manager, pytest.raises(CheckpointError, match="model/"):
            manager.resume(live)


# The folder


def test_two_runs_cannot_write_to_one_folder(tmp_path):
    code = f"""
from pathlib import Path
from monograph.train.checkpoint.store import Store
Store(Path({str(tmp_path)!r})).open()
"""
    with make_manager(tmp_path):
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert f"another run is writing checkpoints to {tmp_path} (process {os.getpid()}" in other.stderr
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0, "the folder is free again"


def test_other_folders_beside_checkpoints_are_left_alone(tmp_path):
    for name in ("notes", "step-12", "step-abc", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "step-00000001.txt").write_text("")
    save_steps(tmp_path, 1, 2, keep_last=1)
    assert find_names(tmp_path) == [".hidden", "notes", "step-00000001.txt", "step-00000002", "step-12", "step-abc"]


def test_a_manager_that_only_reads_changes_nothing(tmp_path):
    save_steps(tmp_path, 1)
    (tmp_path / ".tmp-step-00000002-abcd").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    with make_manager(tmp_path, enabled=False) as manager:
        manager.load(1, blank(make_state(1)))
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with make_manager(tmp_path / "absent", enabled=False) as manager:
        assert manager.latest() is None
    assert not (tmp_path / "absent").exists()


# The configuration


def test_the_config_builds_the_manager_and_says_when_a_save_is_due(tmp_path):
    with CheckpointConfig(interval=5).build(folder=tmp_path) as manager:
        assert isinstance(manager, CheckpointManager)
        assert [step for step in range(1, 13) if manager.is_due(step, last=step == 12)] == [5, 10, 12]
    with CheckpointConfig(interval=0, save_last=False).build(folder=tmp_path) as manager:
        assert not any(manager.is_due(step, last=step == 12) for step in range(1, 13))
    with CheckpointConfig(interval=5, enabled=False).build(folder=tmp_path) as manager:
        assert not any(manager.is_due(step, last=step == 12) for step in range(1, 13))


@pytest.mark.parametrize(
    "settings", [{"interval": -1}, {"keep_last": -1}, {"folder": ""}, {"load_model_only": True, "load": ""}]
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        CheckpointConfig(**settings).check()


# Folders that other users can write to


def find_warnings(caplog):
    return [each.getMessage() for each in caplog.records if "other users can change" in each.getMessage()]


@pytest.fixture
def warnings(caplog):
    with caplog.at_level(logging.WARNING, logger="monograph"):
        yield caplog


def test_a_folder_that_others_can_write_to_is_named_once_with_a_remedy(tmp_path, warnings):
    tmp_path.chmod(0o777)
    with make_manager(tmp_path) as manager:
        manager.save(1, make_state(1), {})
        manager.load("latest", blank(make_state(1)))
    (told,) = find_warnings(warnings)
    assert f"{tmp_path}: mode 0777 lets everybody write" in told and f"chmod -R go-w {tmp_path}" in told


def test_a_checkpoint_file_that_others_can_write_to_is_named_as_it_is_loaded(tmp_path, warnings):
    tmp_path.chmod(0o755)
    save_steps(tmp_path, 1)
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o022)
    with make_manager(tmp_path) as manager:
        manager.load("latest", blank(make_state(1)))
        assert find_warnings(warnings) == []
        file = next(path for path in (tmp_path / "step-00000001").iterdir() if path.name != "manifest.json")
        file.chmod(0o666)
        manager.load("latest", blank(make_state(1)))
    (told,) = find_warnings(warnings)
    assert f"{file}: mode 0666 lets everybody write" in told
