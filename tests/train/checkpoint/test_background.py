"""Saving in the background, and on a disk that refuses."""

import errno
import logging
import os
import threading

import pytest
import torch

from monograph.errors import CheckpointError
from monograph.train.checkpoint.disk import Disk
from monograph.train.checkpoint.staging import Staging
from tests.train.checkpoint.disks import (
    RefusingDisk,
    blank,
    find_names,
    find_steps,
    make_manager,
    make_state,
    same,
    save_steps,
)


class SlowDisk(Disk):
    """Waits before its first write until it is told to go on."""

    def __init__(self) -> None:
        self.started, self.go = threading.Event(), threading.Event()

    def write(self, file, data):
        self.started.set()
        assert self.go.wait(10)
        return super().write(file, data)


# Asynchronous saves


def test_an_async_save_keeps_the_values_of_its_own_step_while_training_changes_them(tmp_path):
    disk = SlowDisk()
    with make_manager(tmp_path, disk, async_save=True) as manager:
        live, values = make_state(1), {"list": [1]}
        manager.save(1, live, values)
        assert disk.started.wait(10)
        for tensor in live.values():
            tensor.zero_()
        values["list"].append(2)
        assert find_names(tmp_path) != ["step-00000001"], "save came back before anything was committed"
        disk.go.set()
        manager.wait()
        loaded = manager.load(1, live)
    assert same(live, make_state(1))
    assert loaded.values == {"list": [1]}


def test_the_next_save_waits_for_the_one_before(tmp_path):
    disk = SlowDisk()
    with make_manager(tmp_path, disk, async_save=True) as manager:
        manager.save(1, make_state(1), {})
        assert disk.started.wait(10)
        threading.Timer(0.2, disk.go.set).start()
        manager.save(2, make_state(2), {})
        assert disk.go.is_set()
        assert "step-00000001" in find_names(tmp_path)
    assert find_steps(tmp_path) == [1, 2]


def test_staging_buffers_are_used_again():
    staging, state = Staging(), make_state(1)
    first = {name: tensor.data_ptr() for name, tensor in staging.stage(state).items()}
    assert {name: tensor.data_ptr() for name, tensor in staging.stage(state).items()} == first
    state["data/counts"] = torch.arange(9)
    assert staging.stage(state)["data/counts"].equal(torch.arange(9)), "a buffer that does not fit is not"


def test_load_waits_for_a_save_under_way(tmp_path):
    disk = SlowDisk()
    with make_manager(tmp_path, disk, async_save=True) as manager:
        manager.save(4, make_state(4), {})
        threading.Timer(0.1, disk.go.set).start()
        live = blank(make_state(4))
        assert manager.load("latest", live).step == 4
    assert same(live, make_state(4))


def test_a_fault_of_the_program_in_the_background_surfaces_at_the_next_call(tmp_path):
    class BrokenDisk(Disk):
        def write(self, file, data):
            raise ZeroDivisionError("a bug")

    for surface in ("save", "wait", "close"):
        manager = make_manager(tmp_path / surface, BrokenDisk(), async_save=True)
        manager.save(1, make_state(1), {})
        call = {"save": lambda m=manager: m.save(2, make_state(2), {}), "wait": manager.wait, "close": manager.close}
        with pytest.raises(ZeroDivisionError, match="a bug"):
            call[surface]()


# A disk that refuses

KINDS = [("write", errno.ENOSPC), ("sync", errno.EIO), ("make_folder", errno.EROFS), ("rename", errno.EIO)]


@pytest.mark.parametrize("async_save", [False, True])
@pytest.mark.parametrize(("kind", "code"), KINDS)
def test_training_goes_on_when_a_save_fails_and_older_checkpoints_are_kept(tmp_path, caplog, kind, code, async_save):
    save_steps(tmp_path, 1)
    disk = RefusingDisk(kind, code)
    manager = make_manager(tmp_path, disk, async_save=async_save, keep_last=1, load="latest")
    manager.resume(blank(make_state(1)))
    with caplog.at_level(logging.ERROR, "monograph"):
        manager.save(2, make_state(2), {})
        manager.save(3, make_state(3), {})
        live = blank(make_state(1))
        assert manager.load("latest", live).step == 1, "load waits, and does not raise what was logged"
    assert same(live, make_state(1))
    assert [record.getMessage() for record in caplog.records if "step 2" in record.getMessage()]
    assert any(os.strerror(code) in record.getMessage() for record in caplog.records)
    assert find_names(tmp_path) == ["step-00000001"], "nothing of the failed saves is left"
    disk.broken = False
    manager.save(4, make_state(4), {})
    manager.close()
    assert find_steps(tmp_path) == [4]


@pytest.mark.parametrize("async_save", [False, True])
def test_a_failed_last_save_is_an_error(tmp_path, async_save):
    disk = RefusingDisk("write")
    for end in ("wait", "close"):
        manager = make_manager(tmp_path / end, disk, async_save=async_save)
        manager.save(7, make_state(7), {})
        with pytest.raises(CheckpointError, match=r"(?s)step 7.*No space left") as caught:
            getattr(manager, end)()
        assert "make room" in caught.value.do


def test_a_failed_save_stops_the_run_when_that_was_asked_for(tmp_path):
    manager = make_manager(tmp_path, RefusingDisk("sync", errno.EIO), on_error="stop")
    with pytest.raises(CheckpointError, match="step 1"):
        manager.save(1, make_state(1), {})


def test_a_later_good_save_makes_up_for_a_failed_one(tmp_path):
    disk = RefusingDisk("write")
    with make_manager(tmp_path, disk) as manager:
        manager.save(1, make_state(1), {})
        disk.broken = False
        manager.save(2, make_state(2), {})
    assert find_steps(tmp_path) == [2]


def test_a_disk_that_stores_something_else_is_noticed_before_anything_is_deleted(tmp_path):
    """A bit flips between the program and the platter: the file is read back before it counts."""

    class LyingDisk(Disk):
        def write(self, file, data):
            return os.write(file, bytes(data[:-1]) + bytes([data[-1] ^ 1]))

    save_steps(tmp_path, 1)
    manager = make_manager(tmp_path, LyingDisk(), keep_last=1, load="latest")
    manager.resume(blank(make_state(1)))
    manager.save(2, make_state(2), {})
    assert find_steps(tmp_path) == [1]
    with pytest.raises(CheckpointError, match="reads back differently"):
        manager.close()


def test_a_refused_deletion_costs_space_only(tmp_path, caplog):
    for kind in ("remove_file", "remove_folder"):
        folder = tmp_path / kind
        with make_manager(folder, RefusingDisk(kind, errno.EACCES), keep_last=1) as manager:
            manager.save(1, make_state(1), {})
            manager.save(2, make_state(2), {})
        assert "could not delete" in caplog.text
        with make_manager(folder) as manager:
            assert find_names(folder) == ["step-00000002"], "the next start takes away what was left"
            assert manager.latest() == folder / "step-00000002"


def test_a_failed_replacement_leaves_the_old_checkpoint_in_place(tmp_path):
    save_steps(tmp_path, 1)

    class OneRename(Disk):
        renames = 0

        def rename(self, old, new):
            self.renames += 1
            if self.renames == 2:
                raise OSError(errno.EIO, "I/O error")
            super().rename(old, new)

    manager = make_manager(tmp_path, OneRename())
    manager.save(1, make_state(99), {})
    live = blank(make_state(1))
    manager.load(1, live)
    assert same(live, make_state(1))
    with pytest.raises(CheckpointError):
        manager.close()


def test_a_folder_that_cannot_be_written_is_an_error_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        make_manager(tmp_path / "file" / "run")
