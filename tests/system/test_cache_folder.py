"""The user's cache folder: where it is, that it is private, and that it does not grow without end."""

import os
import re

import pytest

from monograph.system.cache_folder import find_cache_folder, is_left_over, make_private_folder, remove_oldest
from monograph.system.own_file import NotOwnFile

NAMES = re.compile(r"[0-9]\.json")


def write(folder, name, size, age):
    """A file of so many bytes that was used last so many seconds after 1970."""
    path = folder / name
    path.write_bytes(b"x" * size)
    os.utime(path, (age, age))
    return path


def find_left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_is_that_of_the_variable_or_of_home_and_a_relative_one_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert find_cache_folder("steps") == tmp_path / "cache" / "monograph" / "steps"
    for value in ("", "cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert find_cache_folder("steps") == tmp_path / ".cache" / "monograph" / "steps"


def test_a_new_folder_is_private_and_one_that_is_open_is_refused(tmp_path):
    folder = tmp_path / "one" / "two"
    make_private_folder(folder)
    make_private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o750)
    with pytest.raises(NotOwnFile, match="open to other users"):
        make_private_folder(folder)


def test_a_link_or_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(NotOwnFile, match="no folder"):
            make_private_folder(tmp_path / name)


def test_entries_that_were_used_last_stay_and_no_other_file_is_deleted(tmp_path):
    for number in range(5):
        write(tmp_path, f"{number}.json", 100, age=1000 + number)
    write(tmp_path, "notes.txt", 1000, age=1)
    (tmp_path / "7.json").mkdir()
    (tmp_path / "8.json").symlink_to(tmp_path / "notes.txt")
    remove_oldest(tmp_path, NAMES, max_bytes=250)
    assert find_left(tmp_path) == ["3.json", "4.json", "7.json", "8.json", "notes.txt"]
    remove_oldest(tmp_path, NAMES, max_bytes=250)
    assert len(find_left(tmp_path)) == 5


def test_what_a_killed_writer_has_left_is_deleted_and_what_is_being_written_stays(tmp_path):
    left = write(tmp_path, ".1.json.0123abcd", 10, age=1)
    now = tmp_path / ".2.json.0123abcd"
    now.write_bytes(b"")
    write(tmp_path, ".3.txt.0123abcd", 10, age=1)
    remove_oldest(tmp_path, NAMES, max_bytes=1000)
    assert not left.exists() and find_left(tmp_path) == [now.name, ".3.txt.0123abcd"]
    assert not is_left_over("1.json", NAMES) and not is_left_over(".1.json", NAMES)
