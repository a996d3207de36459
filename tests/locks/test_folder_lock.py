"""One process at a time has a folder, whatever happens to the process or to the folder."""

import fcntl
import os
import shutil
import signal
import socket
import threading
import time
from unittest import mock

import pytest

from monograph.errors import ConfigError
from monograph.locks import lock_file
from monograph.locks.folder_lock import FolderLock, FolderMoved, locked_output
from monograph.locks.holder import parse_holder, this_process
from monograph.locks.lock_file import InUse, LockFile
from tests.locks.holders import FORK, TRY, WAIT, elsewhere, finish, hold, kill, start, write_lock


@pytest.fixture
def take(tmp_path):
    """Lock a folder; it is given back when the test ends."""
    taken = []

    def acquire(folder=tmp_path):
        lock = FolderLock(folder)
        taken.append(lock)
        lock.acquire()
        return lock

    yield acquire
    for lock in taken:
        lock.release()


@pytest.fixture
def no_flock(monkeypatch):
    """A file system that has no locks."""

    def refuse(*_):
        raise OSError(95, "no locks here")

    monkeypatch.setattr(lock_file.fcntl, "flock", refuse)


@pytest.mark.parametrize("words", [[], ["no-flock"]], ids=["flock", "no flock"])
def test_a_folder_in_use_is_refused_with_process_and_host_and_free_afterwards(tmp_path, take, words, request):
    if words:
        request.getfixturevalue("no_flock")
    other = hold(tmp_path, *words)
    with pytest.raises(InUse, match=f"process {other.pid} on {socket.gethostname()}, since 20"):
        take()
    assert finish(other)[0] == 0
    start_time = time.monotonic()
    take()
    assert time.monotonic() - start_time < 5, "nobody waits for a lock that was given back"


@pytest.mark.parametrize("words", [[], ["no-flock"]], ids=["flock", "no flock"])
def test_a_killed_process_blocks_nobody(tmp_path, take, words, request):
    if words:
        request.getfixturevalue("no_flock")
    other = hold(tmp_path, *words)
    kill(other)
    assert parse_holder((tmp_path / ".lock").read_bytes()).pid == other.pid, "it had no time to let go"
    take()
    assert parse_holder((tmp_path / ".lock").read_bytes()).pid == os.getpid()


@pytest.mark.parametrize("words", [[], ["no-flock"]], ids=["flock", "no flock"])
def test_a_stopped_process_still_has_its_folder(tmp_path, take, words, request):
    if words:
        request.getfixturevalue("no_flock")
    other = hold(tmp_path, *words)
    other.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(InUse, match=f"process {other.pid}"):
            take()
    finally:
        other.send_signal(signal.SIGCONT)
        finish(other)


@pytest.mark.parametrize(
    ("words", "leftover"),
    [
        pytest.param([], False, id="flock, new folder"),
        pytest.param([], True, id="flock, after a kill", marks=pytest.mark.long),
        pytest.param(["no-flock"], False, id="no flock, new folder", marks=pytest.mark.long),
        pytest.param(["no-flock"], True, id="no flock, after a kill"),
    ],
)
def test_of_many_that_ask_at_once_one_gets_the_folder(tmp_path, words, leftover):
    if leftover:
        kill(hold(tmp_path, *words))
    racers = [start(WAIT, tmp_path, *words) for _ in range(6)]
    deadline = time.monotonic() + 60
    while sum(racer.poll() is None for racer in racers) > 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    ended = [finish(racer) for racer in racers]
    assert sorted(code for code, _ in ended) == [0, 1, 1, 1, 1, 1], ended
    assert all("refused" in said and "is held by process" in said for code, said in ended if code)


def test_a_second_lock_of_the_same_process_is_refused_too(take):
    take()
    with pytest.raises(InUse, match=f"process {os.getpid()}"):
        take()


def test_a_folder_that_is_replaced_while_it_is_being_locked_is_locked_as_it_is_now(tmp_path, take, monkeypatch):
    folder, lock = tmp_path / "run", lock_file._lock
    folder.mkdir()

    def replace_first(*args):
        if not (tmp_path / "moved").exists():
            folder.rename(tmp_path / "moved")
            folder.mkdir()
        return lock(*args)

    monkeypatch.setattr(lock_file, "_lock", replace_first)
    taken = take(folder)
    assert parse_holder((folder / ".lock").read_bytes()).pid == os.getpid()
    taken.check()
    code, said = finish(start(TRY, folder))
    assert code and f"process {os.getpid()}" in said


def test_a_process_id_that_was_given_to_another_process_is_not_the_holder(tmp_path, take, no_flock):
    mine = this_process()
    write_lock(tmp_path, mine)
    with pytest.raises(InUse):
        take()
    reused = dict(pid=mine.pid, started=str(int(mine.started) - 1), host=mine.host, machine=mine.machine)
    write_lock(tmp_path, elsewhere(**reused))
    take()


def test_a_process_that_has_ended_but_was_not_collected_holds_nothing(tmp_path, take, no_flock):
    child = hold(tmp_path, "no-flock")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    take()
    child.communicate()


def test_a_forked_child_that_outlives_the_holder_does_not_keep_the_folder(tmp_path, take):
    parent = start(FORK, tmp_path)
    child = int(parent.stdout.readline().split()[1])
    parent.kill()
    parent.wait()
    try:
        take()
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_a_holder_elsewhere_that_refreshes_its_lock_is_alive(tmp_path, take):
    path = write_lock(tmp_path, elsewhere())
    refresh = threading.Timer(0.5, os.utime, [path])
    refresh.start()
    with pytest.raises(InUse, match="process 4711 on elsewhere") as error:
        take()
    assert "refreshed" in error.value.why
    refresh.join()


def test_a_holder_elsewhere_that_was_silent_for_long_is_taken_to_be_dead_and_said_so(tmp_path, take, caplog):
    write_lock(tmp_path, elsewhere(), age_seconds=lock_file.STALE_SECONDS + 30)
    start_time = time.monotonic()
    take()
    assert time.monotonic() - start_time < 5
    assert "process 4711 on elsewhere has not refreshed it for 90 s and is taken to be dead" in caplog.text


def test_a_holder_elsewhere_that_was_just_there_is_waited_for(tmp_path, take, monkeypatch):
    monkeypatch.setattr(lock_file, "STALE_SECONDS", 1.5)
    write_lock(tmp_path, elsewhere())
    start_time = time.monotonic()
    take()
    assert 1 < time.monotonic() - start_time < 20


@pytest.fixture
def on_file_server(tmp_path):
    """A lock that a file server keeps for a machine, whether or not that machine is there."""
    opened = []

    def keep(age_seconds):
        path = write_lock(tmp_path, elsewhere(), age_seconds=age_seconds)
        opened.append(path.open("rb"))
        fcntl.flock(opened[-1], fcntl.LOCK_EX)
        return path

    yield keep
    for file in opened:
        file.close()


def test_a_lock_that_a_file_server_keeps_for_a_dead_machine_is_taken_over_and_said_so(
    tmp_path, take, on_file_server, caplog
):
    path = on_file_server(age_seconds=lock_file.STALE_SECONDS + 30)
    before = path.stat().st_ino
    take().check()
    assert parse_holder(path.read_bytes()).pid == os.getpid() and path.stat().st_ino != before
    assert "process 4711 on elsewhere has not refreshed it for 90 s and is taken to be dead" in caplog.text
    code, said = finish(start(TRY, tmp_path))
    assert code and f"process {os.getpid()}" in said


def test_a_lock_on_a_file_server_whose_machine_refreshes_it_is_refused(take, on_file_server):
    path = on_file_server(age_seconds=0)
    refresh = threading.Timer(0.5, os.utime, [path])
    refresh.start()
    with pytest.raises(InUse, match="process 4711 on elsewhere") as error:
        take()
    assert "refreshed" in error.value.why
    refresh.join()


def test_a_lock_is_refreshed_while_it_is_held(tmp_path, take, monkeypatch):
    monkeypatch.setattr(lock_file, "HEARTBEAT_SECONDS", 0.05)
    take()
    path = tmp_path / ".lock"
    os.utime(path, (1, 1))
    deadline = time.monotonic() + 30
    while path.stat().st_mtime < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_folder_that_was_moved_is_noticed_and_the_new_place_is_named(tmp_path, take):
    lock = take_in(tmp_path / "run", take)
    lock.check()
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(FolderMoved, match=r"run was moved or deleted") as error:
        lock.check()
    assert error.value.why == f"its files are now in {tmp_path / 'moved'}"
    take_in(tmp_path / "run", take)
    with pytest.raises(FolderMoved):
        lock.check()


def test_a_folder_that_was_deleted_is_noticed(tmp_path, take):
    lock = take_in(tmp_path / "run", take)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FolderMoved) as error:
        lock.check()
    assert error.value.why == "its files are deleted"


def take_in(folder, take):
    folder.mkdir()
    return take(folder)


def test_a_folder_whose_lock_file_was_removed_is_locked_again(tmp_path, take):
    lock = take()
    (tmp_path / ".lock").unlink()
    lock.check()
    code, said = finish(start(TRY, tmp_path))
    assert code and f"process {os.getpid()}" in said


def test_a_folder_that_another_took_after_its_lock_file_was_removed_is_noticed(tmp_path, take):
    lock = take()
    (tmp_path / ".lock").unlink()
    other = hold(tmp_path)
    with pytest.raises(FolderMoved, match="taken over") as error:
        lock.check()
    assert f"process {other.pid}" in error.value.why
    finish(other)


def test_a_process_that_was_stopped_for_long_notices_that_its_folder_was_taken_over(tmp_path, take, monkeypatch):
    """Where locks do not reach other machines: the file is the same, and names another holder."""
    lock, usual = take(), time.monotonic
    path = write_lock(tmp_path, elsewhere())
    monkeypatch.setattr(time, "monotonic", lambda: usual() + lock_file.STALE_SECONDS)
    refresh = threading.Timer(0.3, os.utime, [path])
    refresh.start()
    with pytest.raises(FolderMoved, match="taken over"):
        lock.check()
    refresh.join()


def test_a_full_disk_does_not_keep_a_lock_from_being_taken(tmp_path, take, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    usual = time.monotonic
    monkeypatch.setattr(lock_file.os, "pwrite", refuse)
    lock = take()
    with pytest.raises(InUse, match="another process"):
        take()
    monkeypatch.setattr(time, "monotonic", lambda: usual() + lock_file.STALE_SECONDS)
    lock.check()  # after a long stop as well: nobody else can have the lock


def test_a_lock_says_who_holds_it_once_the_disk_has_room(tmp_path, take, monkeypatch):
    monkeypatch.setattr(lock_file, "HEARTBEAT_SECONDS", 0.05)
    with monkeypatch.context() as full:
        full.setattr(lock_file.os, "pwrite", mock.Mock(side_effect=OSError(28, "No space left on device")))
        take()
        assert parse_holder((tmp_path / ".lock").read_bytes()) is None
    deadline = time.monotonic() + 30
    while parse_holder((tmp_path / ".lock").read_bytes()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with pytest.raises(InUse, match=f"process {os.getpid()}"):
        take()


def test_a_folder_that_is_not_there_cannot_be_locked(tmp_path, take):
    with pytest.raises(FileNotFoundError):
        take(tmp_path / "absent")


def test_an_output_has_one_writer_at_a_time_and_no_lock_remains(tmp_path):
    target = tmp_path / "deep" / "artifact"
    with locked_output(target):
        with (
            pytest.raises(ConfigError, match=f"artifact is being written by process {os.getpid()}"),
            locked_output(target),
        ):
            pass
        target.mkdir()
    assert [path.name for path in target.parent.iterdir()] == ["artifact"]
    with pytest.raises(ValueError, match="broken"), locked_output(target):
        raise ValueError("broken")
    assert [path.name for path in target.parent.iterdir()] == ["artifact"]


def test_an_output_that_cannot_be_written_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match="file/artifact cannot be written"),
        locked_output(tmp_path / "file" / "artifact"),
    ):
        pass


def test_a_lock_that_is_removed_when_given_back_is_never_held_twice(tmp_path):
    """Waiting processes open a file that its holder removes: they must not take the removed one for the lock."""
    path = tmp_path / "lock"
    inside, most = 0, 0

    def work():
        nonlocal inside, most
        for _ in range(30):
            lock = LockFile(path, remove=True)
            try:
                lock.acquire()
            except (InUse, OSError):
                continue
            inside += 1
            most = max(most, inside)
            inside -= 1
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and not path.exists()


def test_what_is_not_a_holder_names_none():
    whole = this_process().render()
    assert parse_holder(whole) is not None
    for content in (b"", whole[:-9], b"[]", b"5", b"{}", whole.replace(b'"pid": ', b'"pid": "x", "y": ')):
        assert parse_holder(content) is None
