import errno
import os

import pytest

from monograph.system.own_file import NotOwnFile, create_own, naming, open_own

FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND


def test_a_link_is_never_opened_for_writing(tmp_path):
    (tmp_path / "key").write_text("secret")
    (tmp_path / "metrics.jsonl").symlink_to("key")
    with pytest.raises(NotOwnFile, match="a link to 'key'"):
        open_own(tmp_path / "metrics.jsonl", FLAGS)
    assert (tmp_path / "key").read_text() == "secret"


def test_a_dangling_link_makes_no_file_elsewhere(tmp_path):
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotOwnFile):
        open_own(tmp_path / "log", FLAGS)
    with pytest.raises(FileExistsError):
        create_own(tmp_path / "log")
    assert not (tmp_path / "elsewhere").exists()


def test_special_files_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for flags in (os.O_WRONLY, os.O_RDWR):
        with pytest.raises(NotOwnFile):
            open_own(tmp_path / "fifo", flags)


def test_a_file_of_another_user_in_ones_own_folder_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    status = os.stat(tmp_path)
    monkeypatch.setattr(type(tmp_path), "stat", lambda path: os.stat_result((*status[:4], 4711, *status[5:])))
    with pytest.raises(NotOwnFile, match="user"):
        open_own(tmp_path / "file", FLAGS)
    os.close(open_own(tmp_path / "new", FLAGS | os.O_EXCL))


def test_errors_of_the_disk_are_given_the_name_of_the_file_and_keep_their_text():
    with pytest.raises(OSError, match="No space left on device: 'some/file'"), naming("some/file"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match=r"^the disk is full$"), naming("some/file"):
        raise OSError("the disk is full")


def test_a_folder_that_is_a_link_can_be_written_to(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    os.close(open_own(tmp_path / "run" / "log", FLAGS))
    assert (tmp_path / "disk" / "log").exists()
