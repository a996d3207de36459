import os
from pathlib import Path

import pytest

from monograph.errors import ConfigError
from monograph.system.own_tree import check_replaceable, find_foreign, remove_made, replace_folder


def read_listed(folder):
    return ["list", *(folder / "list").read_text().split()]


def make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("old")
    (folder / "list").write_text(" ".join(names))


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_with_exactly_its_listed_files_is_replaced(tmp_path):
    make(tmp_path / "out", "a", "sub/b")
    make(tmp_path / "new", "c")
    replace_folder(tmp_path / "new", tmp_path / "out", "a thing", read_listed)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"c", "list"}


@pytest.mark.parametrize("extra", ["texts/tokens-1.txt", "tokens-2.txt", "sub/mine"])
def test_a_folder_with_anything_else_in_it_is_left_as_it_is(tmp_path, extra):
    make(tmp_path / "out", "a", "sub/b")
    (tmp_path / "out" / extra).parent.mkdir(exist_ok=True)
    (tmp_path / "out" / extra).write_text("mine")
    make(tmp_path / "new", "c")
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError, match="it holds what is not a thing"):
        replace_folder(tmp_path / "new", tmp_path / "out", "a thing", read_listed)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("locked", [".", "sub"])
def test_a_folder_from_which_nothing_can_be_deleted_is_refused_before_anything_is_moved(tmp_path, monkeypatch, locked):
    make(tmp_path / "out", "a", "sub/b")
    make(tmp_path / "new", "c")
    before = snapshot(tmp_path)
    closed = tmp_path / "out" / locked
    monkeypatch.setattr(os, "access", lambda path, mode, **_: Path(path) != closed)
    with pytest.raises(ConfigError, match=f"nothing can be deleted from {closed}"):
        replace_folder(tmp_path / "new", tmp_path / "out", "a thing", read_listed)
    assert snapshot(tmp_path) == before


def test_a_link_to_a_folder_is_never_replaced_or_deleted(tmp_path):
    make(tmp_path / "archive", "a")
    (tmp_path / "out").symlink_to("archive")
    with pytest.raises(ConfigError, match="it is a link"):
        check_replaceable(tmp_path / "out", "a thing", read_listed)
    remove_made(tmp_path / "out")
    assert (tmp_path / "archive" / "a").exists()
    assert (tmp_path / "out").is_symlink()


def test_a_folder_without_a_readable_list_is_no_thing(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="it is not a thing"):
        check_replaceable(tmp_path / "out", "a thing", read_listed)


def test_links_under_listed_names_are_foreign(tmp_path):
    make(tmp_path / "out", "a", "sub/b")
    (tmp_path / "out" / "a").unlink()
    (tmp_path / "out" / "a").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "out" / "pipe")
    (tmp_path / "out" / "folder").symlink_to("/etc")
    assert find_foreign(tmp_path / "out", ["list", "a", "sub/b"]) == ["a", "folder/", "pipe"]
