"""Links and odd files among checkpoints: nothing outside is emptied, and nothing makes a command wait for ever."""

import os
import shutil
from pathlib import Path

import pytest

from monograph.run import train
from monograph.train.checkpoint import patient_read
from monograph.train.checkpoint.disk import Disk, remove_tree
from monograph.train.checkpoint.manifest import MANIFEST_NAME
from monograph.train.checkpoint.model_source import open_checkpoint
from monograph.train.checkpoint.store import Store
from tests.kit.runs import find_steps as find_run_steps
from tests.kit.runs import read_records, tiny_run
from tests.train.checkpoint.disks import Crash, CrashingDisk, blank, find_names, make_manager, make_state, save_new
from tests.train.checkpoint.disks import save_steps as save_new_run

TENSORS = "rank-00000.safetensors"


@pytest.fixture
def precious(tmp_path) -> Path:
    """A folder of somebody's, outside of the checkpoints."""
    folder = tmp_path / "precious"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "thesis.txt").write_text("mine")
    return folder


def is_whole(precious: Path) -> bool:
    return (precious / "deep" / "thesis.txt").read_text() == "mine"


def archive(folder: Path, step: int, target: Path) -> Path:
    """Move a step elsewhere and leave a link in its place."""
    path = folder / f"step-{step:08d}"
    target.mkdir(parents=True, exist_ok=True)
    shutil.move(path, target / path.name)
    path.symlink_to(target / path.name)
    return target / path.name


@pytest.mark.parametrize(
    "name", [".tmp-x", ".tmp-step-00000002-0123abcd", ".trash-step-00000002-0123abcd", ".old-step-00000001"]
)
def test_a_link_under_the_name_of_a_leftover_is_not_entered(tmp_path, precious, name):
    save_new_run(tmp_path / "checkpoints", 1)
    (tmp_path / "checkpoints" / name).symlink_to(precious)
    make_manager(tmp_path / "checkpoints").close()
    assert is_whole(precious)


def test_a_leftover_that_no_save_has_named_so_stays(tmp_path):
    (tmp_path / ".tmp-notes").mkdir()
    (tmp_path / ".tmp-step-00000002-0123abcd").mkdir()
    make_manager(tmp_path).close()
    assert find_names(tmp_path) == [".tmp-notes"]


def test_a_checkpoint_that_somebody_has_put_files_into_is_not_pruned(tmp_path, caplog):
    """An export or notes lie well beside the weights that they belong to."""
    save_new_run(tmp_path, 1, 2)
    notes, export = tmp_path / "step-00000001" / "notes.txt", tmp_path / "step-00000002" / "hf" / "model.safetensors"
    export.parent.mkdir()
    for path in (notes, export):
        path.write_text("mine")
    with make_manager(tmp_path, keep_last=1, load="latest") as manager:
        assert manager.resume(blank(make_state(2))) is not None
        for step in (3, 4, 5):
            manager.save(step, make_state(step), {})
            manager.wait()
    assert find_names(tmp_path) == ["step-00000001", "step-00000002", "step-00000005"]
    assert notes.read_text() == export.read_text() == "mine"
    said = [record.getMessage() for record in caplog.records if "is not deleted" in record.getMessage()]
    assert len(said) == 2 and "notes.txt" in said[0] and "hf/" in said[1]


@pytest.mark.parametrize("depth", ["the top", "inside"])
def test_removing_a_tree_removes_links_themselves(tmp_path, precious, depth):
    top = tmp_path / "top"
    if depth == "inside":
        top.mkdir()
    (top if depth == "the top" else top / "link").symlink_to(precious)
    remove_tree(Disk(), top)
    assert not os.path.lexists(top) and is_whole(precious)


def test_a_folder_that_becomes_a_link_while_it_is_removed_is_not_entered(tmp_path, precious):
    """Somebody who may write to the folder replaces a part of it between two system calls."""
    (tmp_path / "top" / "inner").mkdir(parents=True)
    (tmp_path / "top" / "a").write_text("")

    class Swapping(Disk):
        def remove_file(self, path, parent=None):
            super().remove_file(path, parent)
            if path == "a":
                (tmp_path / "top" / "inner").rmdir()
                (tmp_path / "top" / "inner").symlink_to(precious)

    with pytest.raises(OSError, match=r"inner"):
        remove_tree(Swapping(), tmp_path / "top")
    assert is_whole(precious)


def test_an_archived_step_that_is_linked_is_never_emptied_and_stays_usable(tmp_path):
    folder = tmp_path / "checkpoints"
    save_new_run(folder, 1, 2, keep_last=0)
    kept = archive(folder, 1, tmp_path / "archive")
    for step in (3, 4):
        save_new(folder, Disk(), step, {"keep_last": 2})
    assert sorted(path.name for path in kept.iterdir()) == [MANIFEST_NAME, TENSORS]
    assert find_names(folder) == ["step-00000001", "step-00000003", "step-00000004"], "the link does not count"
    with make_manager(folder, enabled=False) as manager:
        assert manager.load(1, blank(make_state(0))).step == 1


def test_deleting_a_linked_step_deletes_the_link_only(tmp_path):
    save_new_run(tmp_path / "checkpoints", 1)
    kept = archive(tmp_path / "checkpoints", 1, tmp_path / "archive")
    Store(tmp_path / "checkpoints").delete(tmp_path / "checkpoints" / "step-00000001")
    assert find_names(tmp_path / "checkpoints") == [] and (kept / TENSORS).is_file()


@pytest.mark.parametrize("is_there", [True, False], ids=["archived", "lost"])
def test_a_step_is_saved_over_a_link_of_its_name(tmp_path, is_there):
    folder = tmp_path / "checkpoints"
    save_new_run(folder, 1, 2)
    kept = archive(folder, 2, tmp_path / "archive")
    if not is_there:
        shutil.rmtree(kept)
    with make_manager(folder) as manager:
        manager.load(1, blank(make_state(0)))
        manager.save(2, make_state(77), {"step": 2})
    assert not (folder / "step-00000002").is_symlink()
    assert (tmp_path / "checkpoints.1" / "step-00000002").readlink() == kept
    assert not is_there or (kept / TENSORS).is_file()


def test_a_linked_step_is_put_back_after_a_crash_at_any_point_of_its_replacement(tmp_path):
    for at in range(1, 40):
        folder = tmp_path / str(at) / "checkpoints"
        save_new_run(folder, 1, 2)
        kept = archive(folder, 2, tmp_path / str(at) / "archive")
        try:
            with make_manager(folder, CrashingDisk(at)) as manager:
                manager.save(2, make_state(77), {"step": 2})
            break
        except Crash:
            make_manager(folder).close()
        assert (folder / "step-00000002" / TENSORS).is_file() and (kept / TENSORS).is_file()
    else:
        pytest.fail("the save did not come to an end")


def test_a_run_goes_on_from_a_linked_step_in_its_own_folder(tmp_path):
    folder = tmp_path / "run"
    train(tiny_run(folder, {"training.steps": 1}))
    archive(folder / "checkpoints", 1, tmp_path / "archive")
    train(tiny_run(folder, {"training.steps": 2, "checkpoint.load": "latest"}))
    assert [record["step"] for record in read_records(folder)] == [1, 2] and find_run_steps(folder) == [1, 2]
    assert not (tmp_path / "run.1").exists()


def test_a_linked_step_has_the_tokenizer_of_its_run(tmp_path):
    train(tiny_run(tmp_path / "run", {"training.steps": 1}))
    archive(tmp_path / "run" / "checkpoints", 1, tmp_path / "archive" / "deep")
    assert open_checkpoint(tmp_path / "run" / "checkpoints" / "step-00000001").tokenizer is not None


def test_links_to_themselves_and_names_in_other_digits_are_no_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(patient_read, "PAUSES_SECONDS", (1e9,))
    save_new_run(tmp_path, 1)
    (tmp_path / "step-00000009").symlink_to(tmp_path / "step-00000009")
    (tmp_path / "step-00000008").symlink_to(tmp_path / "nowhere")
    (tmp_path / "step-0000000\N{ARABIC-INDIC DIGIT SEVEN}").mkdir()
    assert [path.name for path in Store(tmp_path).find_all()] == ["step-00000001"]


@pytest.mark.parametrize("file", [MANIFEST_NAME, TENSORS])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_file_is_damage_and_does_not_hang(tmp_path, file, kind):
    save_new_run(tmp_path, 1, 2)
    path = tmp_path / "step-00000002" / file
    path.unlink()
    {"fifo": os.mkfifo, "device": lambda it: it.symlink_to("/dev/zero"), "folder": os.mkdir}[kind](path)
    with make_manager(tmp_path, enabled=False) as manager:
        assert manager.latest() == tmp_path / "step-00000001"
