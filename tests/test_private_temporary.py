"""Folders for what is run or unpickled: no other user can put another folder in their place."""

import errno
import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from monograph import private_temporary
from monograph.commands.compare import kept_on_failure
from monograph.compat import compiled_code
from monograph.compat.compiled_code import CODE_FOLDER, keep_compiled_code_private
from monograph.errors import ConfigError
from monograph.execute.artifact.make import make_custom_kernels
from monograph.launch.local_rendezvous import local_rendezvous
from monograph.permissions import find_exposed_parents
from monograph.private_temporary import make_private_temporary
from monograph.system.own_tree import remove_made
from monograph.train.launch_logs import LaunchLogs
from monograph.train.node_corpus import make_corpus_folder

NOBODY = 65534


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder for temporary files in which everybody may rename everything, as on many a cluster's scratch disk."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    folder.chmod(0o777)
    use_temporary(folder, monkeypatch)
    return folder


def use_temporary(folder, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_the_store_of_ranks_lies_where_no_other_user_can_rename_it(shared):
    with local_rendezvous() as meeting:
        folder = Path(meeting["rdzv_endpoint"])
        assert folder.stat().st_mode & 0o077 == 0
        assert find_exposed_parents(folder) == [] and shared not in folder.parents
    assert not folder.exists()


def test_a_folder_of_ones_own_is_used_and_deleted(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    use_temporary(tmp_path, monkeypatch)
    with local_rendezvous() as meeting:
        assert Path(meeting["rdzv_endpoint"]).parent == tmp_path
    assert make_custom_kernels([]) == {}
    assert list(tmp_path.iterdir()) == []


def refuse_locks(folder, monkeypatch):
    """Let a folder's file system refuse locks, as Lustre does where it is mounted without them."""
    lock = fcntl.flock

    def refuse(file, operation):
        number = file if isinstance(file, int) else file.fileno()
        if os.readlink(f"/proc/self/fd/{number}").startswith(str(folder)):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_the_store_of_ranks_lies_where_files_can_be_locked(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    use_temporary(tmp_path, monkeypatch)
    refuse_locks(tmp_path, monkeypatch)
    with local_rendezvous() as meeting:
        assert tmp_path not in Path(meeting["rdzv_endpoint"]).parents
    monkeypatch.setattr(private_temporary, "_PLACES", ())
    with pytest.raises(ConfigError, match=f"files can be locked; TMPDIR is {tmp_path}") as raised, local_rendezvous():
        pass
    assert "locks no files (No locks available)" in raised.value.why
    assert list(tmp_path.iterdir()) == []


def test_without_a_safe_place_the_start_is_refused_by_name(shared, monkeypatch):
    monkeypatch.setattr(private_temporary, "_PLACES", (str(shared / "missing"),))
    with pytest.raises(ConfigError, match="TMPDIR is") as raised:
        make_private_temporary("a-")
    assert "lets everybody write" in raised.value.why
    assert list(shared.iterdir()) == []


def make_open_folder(path):
    path.mkdir()
    path.chmod(0o777)


def make_link(path):
    path.with_name("elsewhere").mkdir()
    path.symlink_to("elsewhere")


def make_others_folder(path):
    if os.geteuid():
        pytest.skip("only root can make a folder of another user")
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize("make", [make_open_folder, make_link, make_others_folder])
def test_compiled_code_is_kept_in_no_folder_that_another_user_made(make, tmp_path, monkeypatch):
    """Any user can make torch's folder in /tmp first, and then exchange the libraries that are loaded from it."""
    place = tmp_path / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    use_temporary(place, monkeypatch)
    code = find_code_folder(tmp_path, monkeypatch)
    assert code.parent == place and code.stat().st_mode & 0o077 == 0
    code.rmdir()
    make(code)
    assert find_code_folder(tmp_path, monkeypatch) == tmp_path / "cache" / "monograph" / "inductor"


def find_code_folder(home, monkeypatch):
    """The folder that torch is told of, in a process that was told of none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv(CODE_FOLDER, "")  # restored at the end
    keep_compiled_code_private()
    return Path(os.environ[CODE_FOLDER])


def test_a_folder_that_the_environment_names_stays(tmp_path, monkeypatch):
    monkeypatch.setenv(CODE_FOLDER, str(tmp_path))
    keep_compiled_code_private()
    assert os.environ[CODE_FOLDER] == str(tmp_path)


def test_compiled_code_is_refused_where_others_could_replace_any_folder(shared, monkeypatch):
    monkeypatch.setattr(compiled_code, "find_cache_folder", lambda kind: shared / kind)
    monkeypatch.setenv(CODE_FOLDER, "")
    with pytest.raises(ConfigError, match="compiled code would be kept"):
        keep_compiled_code_private()


def test_texts_outputs_and_logs_lie_where_no_other_user_can_rename_them(shared, tmp_path):
    """The tokens of a node, the two runs of compare, and what is kept of a launch that failed."""
    logs = LaunchLogs(tmp_path / "run", "now")
    logs.make()
    with kept_on_failure() as compared:
        made = [make_corpus_folder(), logs.settle(is_kept=True), compared]
    for folder in made:
        assert folder is not None and find_exposed_parents(folder) == [] and shared not in folder.parents
        remove_made(folder)


def test_what_a_killed_launcher_left_is_removed_by_the_next_one(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    use_temporary(tmp_path, monkeypatch)
    monkeypatch.setattr(private_temporary, "_PLACES", ())
    for name in ("left", "used", "new", "notes", "linked"):
        folder = tmp_path / f"monograph-ranks-{name}"
        folder.mkdir()
        (folder / ("thesis.txt" if name == "notes" else "store-0")).write_text("")
        if name != "new":
            os.utime(folder, (0, 0))
    (tmp_path / "monograph-ranks-linked").rename(tmp_path / "elsewhere")
    (tmp_path / "monograph-ranks-linked").symlink_to(tmp_path / "elsewhere")
    used = os.open(tmp_path / "monograph-ranks-used", os.O_RDONLY)
    try:
        fcntl.flock(used, fcntl.LOCK_SH)
        with local_rendezvous():
            pass
    finally:
        os.close(used)
    kept = ["elsewhere", *(f"monograph-ranks-{name}" for name in ("linked", "new", "notes", "used"))]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    assert (tmp_path / "elsewhere" / "store-0").exists()
