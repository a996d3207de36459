"""A disk that refuses to show a checkpoint says nothing about it: it is asked again, and no older one is taken."""

import errno
import os
import re
from pathlib import Path

import pytest

from monograph.errors import CheckpointError
from monograph.train.checkpoint import choose, patient_read
from monograph.train.checkpoint.patient_read import PAUSES_SECONDS, UnreadableError, read_again
from monograph.train.checkpoint.store import Store
from tests.train.checkpoint.disks import blank, find_steps, make_manager, make_state, same, save_steps
from tests.train.checkpoint.refusing_reads import RefusingReads, refusing

ERRORS = (errno.ESTALE, errno.EIO, errno.EACCES, errno.ETIMEDOUT)
FOR_EVER = 1 << 30


@pytest.fixture
def folder(tmp_path) -> Path:
    save_steps(tmp_path / "run", 1, 2)
    return tmp_path / "run"


def resume(folder: Path, reads: RefusingReads, live: dict) -> int | None:
    """The step that `auto` loads while some reads are refused."""
    with make_manager(folder, enabled=False, load="auto") as manager, refusing(reads):
        loaded = manager.resume(live)
    return loaded.step if loaded is not None else None


def count_reads(folder: Path) -> int:
    reads = RefusingReads(folder)
    assert resume(folder, reads, blank(make_state(0))) == 2
    return reads.count


@pytest.mark.parametrize("code", ERRORS)
def test_an_error_at_any_read_of_a_resume_that_passes_changes_nothing(folder, code):
    for at in range(1, count_reads(folder) + 1):
        live = blank(make_state(0))
        assert resume(folder, RefusingReads(folder, code, first=at, last=at), live) == 2
        assert same(live, make_state(2))


def test_an_error_at_any_read_of_a_resume_that_stays_never_takes_an_older_checkpoint(folder):
    count, loaded = count_reads(folder), 0
    for at in range(1, count + 1):
        live = blank(make_state(0))
        try:
            assert resume(folder, RefusingReads(folder, errno.ESTALE, first=at, last=FOR_EVER), live) == 2
            assert same(live, make_state(2))
            loaded += 1
        except CheckpointError as error:
            assert re.search("cannot be read|stopped half way", str(error))
            assert same(live, blank(make_state(0)))
    assert loaded < count / 2  # after the files are open, a look at the folder may fail


def test_a_refusal_is_tried_again_a_stated_number_of_times(folder):
    retries = len(PAUSES_SECONDS)
    assert resume(folder, RefusingReads(folder, errno.EIO, first=1, last=retries), blank(make_state(0))) == 2
    with pytest.raises(UnreadableError, match="an older one in its place would lose steps"):
        resume(folder, RefusingReads(folder, errno.EIO, first=1, last=retries + 1), blank(make_state(0)))


@pytest.mark.parametrize("file", [".nfs000000000000a1b2", ".DS_Store", "notes.txt"])
def test_a_stray_file_does_not_spoil_a_checkpoint_and_is_named(folder, caplog, file):
    (folder / "step-00000002" / file).write_bytes(b"x")
    live, reads = blank(make_state(0)), RefusingReads(folder / "step-00000002" / file)
    assert resume(folder, reads, live) == 2
    assert same(live, make_state(2)) and reads.count == 0
    assert f"{file}; it is not read" in caplog.text


def test_what_was_passed_over_is_kept_when_its_step_is_saved_again(folder):
    tensors = folder / "step-00000002" / "rank-00000.safetensors"
    damaged = tensors.read_bytes()[:-1]
    tensors.write_bytes(damaged)
    with make_manager(folder, load="latest") as manager:
        assert manager.resume(blank(make_state(0))).step == 1
        manager.save(2, make_state(77), {})
    assert find_steps(folder) == [1, 2]
    kept = folder.with_name("run.1") / "step-00000002"
    assert (kept / tensors.name).read_bytes() == damaged
    with make_manager(folder, enabled=False) as manager:
        live = blank(make_state(0))
        assert manager.load("latest", live).step == 2 and same(live, make_state(77))


def test_a_save_survives_an_older_manifest_that_cannot_be_read_for_a_moment(folder):
    with make_manager(folder, load="latest", keep_last=0) as manager:
        manager.resume(blank(make_state(0)))
        with refusing(RefusingReads(folder / "step-00000001", errno.EIO, first=1, last=2)):
            manager.save(3, make_state(3), {})
    assert find_steps(folder) == [1, 2, 3]


def test_an_old_checkpoint_that_stays_unreadable_keeps_no_later_one_from_being_written(folder):
    """Whoever follows the advice to load another one goes on saving."""
    unreadable = RefusingReads(folder / "step-00000001", errno.EIO, first=1, last=FOR_EVER)
    with refusing(unreadable), make_manager(folder, load="2", keep_last=2) as manager:
        assert manager.resume(blank(make_state(0))).step == 2
        manager.open()
        for step in (3, 4, 5):
            manager.save(step, make_state(step), {"step": step})
            manager.wait()
    assert set(find_steps(folder)) >= {1, 4, 5}


def test_what_is_known_of_checkpoints_does_not_grow_with_their_number(tmp_path):
    with make_manager(tmp_path / "run", keep_last=2) as manager:
        manager.open()
        for step in range(1, 9):
            manager.save(step, make_state(step), {"step": step})
            manager.wait()
        assert len(manager._heads) <= 3


def test_checkpoints_behind_a_link_are_set_aside_where_they_can_be_renamed(folder, tmp_path):
    """Beside the link may be another file system."""
    link = tmp_path / "elsewhere" / "checkpoints"
    link.parent.mkdir()
    link.symlink_to(folder)
    store = Store(link)
    store.set_later_aside(1)
    assert [path.name for path in store.find_all()] == ["step-00000001"]
    assert (folder / "aside.1" / "step-00000002").is_dir() and list(link.parent.iterdir()) == [link]


def test_a_file_where_a_folder_is_looked_for_is_an_answer_and_is_not_asked_again(tmp_path, caplog):
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(OSError):
        read_again(tmp_path, lambda: os.listdir(tmp_path / "model.json"))
    assert "tried again" not in caplog.text


@pytest.mark.parametrize("code", [*ERRORS, errno.ENOENT])
def test_a_local_disk_is_read_once(tmp_path, monkeypatch, code):
    monkeypatch.setattr(patient_read, "is_local", lambda path: True)
    reads = []

    def refuse() -> None:
        reads.append(code)
        raise OSError(code, os.strerror(code))

    with pytest.raises(OSError):
        read_again(tmp_path, refuse, may_be_late=True)
    assert len(reads) == 1


def test_a_folder_that_may_not_be_looked_into_is_named(folder, monkeypatch):
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path / "manifest.json"))

    monkeypatch.setattr(choose, "is_checkpoint", refuse)
    with pytest.raises(CheckpointError, match=f"cannot read {folder}\nwhy: Permission denied"):
        choose.find_candidates(Store(folder), folder)
