"""A small file is there whole or not at all, and an error names it."""

import errno
import os

import pytest

from monograph.whole_file import write_whole


def test_a_link_is_replaced_and_its_target_keeps_its_text(tmp_path):
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "out").symlink_to("notes")
    write_whole(tmp_path / "out", "new")
    assert (tmp_path / "notes").read_text() == "mine" and (tmp_path / "out").read_text() == "new"


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "out").write_text("old")

    def refuse(old, new):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="No space") as failed:
        write_whole(tmp_path / "out", "new")
    assert failed.value.filename == str(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"] and (tmp_path / "out").read_text() == "old"


def test_a_folder_in_place_of_the_file_is_named(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(IsADirectoryError) as failed:
        write_whole(tmp_path / "out", "new")
    assert failed.value.filename == str(tmp_path / "out") and os.listdir(tmp_path) == ["out"]
