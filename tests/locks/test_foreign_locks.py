"""What lies under the name of a lock and is none keeps its content."""

import os
from unittest.mock import Mock

import pytest

from monograph.errors import ConfigError
from monograph.locks import lock_file
from monograph.locks.folder_lock import FolderLock, locked_output
from monograph.locks.holder import parse_holder, this_process
from monograph.locks.lock_file import LockFile


def test_a_lock_that_is_a_link_is_refused_and_its_target_keeps_its_text(tmp_path):
    (tmp_path / "key").write_text("secret")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "key")
    (tmp_path / ".exp9.lock").symlink_to("key")
    with pytest.raises(OSError, match="a link to"):
        FolderLock(tmp_path / "run").acquire()
    with pytest.raises(ConfigError, match=r"exp9\.lock: it is a link to 'key'"), locked_output(tmp_path / "exp9"):
        raise AssertionError
    assert (tmp_path / "key").read_text() == "secret"


@pytest.mark.parametrize("words", [[], ["no-flock"]], ids=["flock", "no flock"])
def test_a_file_that_is_no_lock_is_neither_emptied_nor_moved(tmp_path, words, monkeypatch):
    if words:
        monkeypatch.setattr(lock_file.fcntl, "flock", Mock(side_effect=OSError(95, "no locks here")))
    for text in ("my notes", '{"pid" : 1}', '{"pid": 1}' + 5000 * " "):
        (tmp_path / ".lock").write_text(text)
        with pytest.raises(OSError, match="no lock of this program"):
            FolderLock(tmp_path).acquire()
        assert [path.name for path in tmp_path.iterdir()] == [".lock"] and (tmp_path / ".lock").read_text() == text


CUT = {"empty": b"", "begun": b"{", "cut": this_process().render()[:40], "zeros": bytes(200)}


@pytest.mark.parametrize("left", CUT.values(), ids=CUT)
def test_what_a_power_cut_leaves_of_a_lock_is_taken_over(tmp_path, left):
    (tmp_path / ".lock").write_bytes(left)
    lock = FolderLock(tmp_path)
    lock.acquire()
    assert parse_holder((tmp_path / ".lock").read_bytes()).pid == os.getpid()
    lock.release()


def test_a_pipe_in_place_of_a_lock_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    assert LockFile(tmp_path / ".lock").read_holder() is None
    with pytest.raises(OSError, match="not a regular file"):
        FolderLock(tmp_path).acquire()


def test_hostile_holders_are_none():
    whole = this_process().render()
    assert parse_holder(b"[" * 100_000) is None
    assert parse_holder(whole.replace(b'"since": "', b'"since": "\\u001b[2J')) is None
    assert parse_holder(whole.replace(b'"pid": ', b'"pid": 1000000000000000')) is None
