"""Two runs never share a folder of checkpoints; resumes, copies and loading from another run go on working."""

import shutil

import pytest

from monograph.errors import CheckpointError
from monograph.run import train
from tests.kit.runs import find_steps, open_trainer, tiny_run
from tests.train.test_folder import listing

REFUSED = r"(?s)shared holds the checkpoints of another run.*step-00000001.*--checkpoint.load latest.*shared/NAME"


@pytest.fixture
def shared(tmp_path):
    """A folder outside of any run's, with the checkpoint of a first run."""
    train(run(tmp_path / "first", tmp_path / "shared", steps=1))
    return tmp_path / "shared"


def run(folder, checkpoints, *, steps=2, **changes):
    changes = {f"checkpoint.{name}": value for name, value in changes.items()}
    return tiny_run(folder, {"training.steps": steps, "checkpoint.folder": str(checkpoints), **changes})


def find_names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


@pytest.mark.parametrize("changes", [{}, {"load": "latest", "load_model_only": True}], ids=str)
@pytest.mark.parametrize("name", ["first", "second"])
def test_a_new_run_is_refused_where_another_one_has_left_checkpoints(tmp_path, shared, name, changes):
    before = listing(tmp_path)
    with pytest.raises(CheckpointError, match=REFUSED):
        train(run(tmp_path / name, shared, **changes))
    assert listing(tmp_path) == before


def test_a_checkpoint_of_another_folder_does_not_begin_a_run_among_others(tmp_path, shared):
    shutil.copytree(shared, tmp_path / "copy")
    with pytest.raises(CheckpointError, match=REFUSED):
        train(run(tmp_path / "second", shared, load=str(tmp_path / "copy" / "step-00000001")))


def test_a_run_whose_checkpoints_appear_while_another_starts_is_not_mixed_with_it(tmp_path, shared):
    """Both had found the folder empty, and the first one has ended before the second takes its first step."""
    (tmp_path / "kept").mkdir()
    (shared / "step-00000001").rename(tmp_path / "kept" / "step-00000001")
    with open_trainer(run(tmp_path / "second", shared)) as trainer:
        (tmp_path / "kept" / "step-00000001").rename(shared / "step-00000001")
        with pytest.raises(CheckpointError, match=REFUSED):
            trainer.train()
    assert find_names(shared) == ["step-00000001"]


@pytest.mark.parametrize("load", ["latest", "auto", "1", "the folder", "the step"])
def test_a_run_goes_on_in_a_folder_outside_of_its_own(tmp_path, shared, load):
    words = {"the folder": str(shared), "the step": str(shared / "step-00000001")}
    train(run(tmp_path / "first", shared, load=words.get(load, load)))
    assert find_names(shared) == ["step-00000001", "step-00000002"] and not (tmp_path / "first.1").exists()


def test_auto_begins_in_an_empty_folder_and_goes_on_in_it(tmp_path):
    for steps in (1, 2):
        train(run(tmp_path / "first", tmp_path / "shared", steps=steps, load="auto"))
    assert find_names(tmp_path / "shared") == ["step-00000001", "step-00000002"]


def test_a_copied_run_goes_on_beside_the_first_one(tmp_path):
    train(tiny_run(tmp_path / "first", {"training.steps": 1}))
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    for name in ("first", "copy"):
        train(tiny_run(tmp_path / name, {"training.steps": 2, "checkpoint.load": "latest"}))
        assert find_steps(tmp_path / name) == [1, 2]


@pytest.mark.parametrize("changes", [{}, {"load_model_only": True}], ids=str)
def test_a_run_that_starts_from_another_ones_checkpoint_has_a_folder_of_its_own(tmp_path, shared, changes):
    train(run(tmp_path / "second", tmp_path / "own", load=str(shared), **changes))
    assert find_names(tmp_path / "own") == ["step-00000002"] and find_names(shared) == ["step-00000001"]


def test_a_new_run_whose_own_checkpoints_are_behind_a_link_moves_them_aside_with_it(tmp_path):
    train(tiny_run(tmp_path / "run", {"training.steps": 1}))
    shutil.move(tmp_path / "run" / "checkpoints", tmp_path / "big")
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "big")
    train(tiny_run(tmp_path / "run", {"training.steps": 2}))
    assert find_steps(tmp_path / "run") == [2] and find_steps(tmp_path / "run.1") == [1]
