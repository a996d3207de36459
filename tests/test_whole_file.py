"""Files that are there whole or not at all; what a user names is neither followed nor replaced when it is a link."""

import errno
import os
import socket
import stat

import pytest

import monograph.whole_file
from monograph import cli
from monograph.errors import ConfigError, MonographError
from monograph.whole_file import check_output, check_output_folder, write_output, write_whole
from tests.report.reports import make_step_report
from tests.report.test_compare import write as write_report
from tests.watch.run_folders import make_run


def test_a_file_is_replaced_whole_and_a_link_in_its_place_is_not_followed(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "made" / "file"
    write_whole(path, "one")
    write_whole(path, b"two")
    assert path.read_text() == "two"
    victim.write_text("mine")
    path.unlink()
    path.symlink_to(victim)
    write_whole(path, "three")
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("mine", "three", False)
    assert os.listdir(path.parent) == ["file"]


def test_the_mode_of_a_file_follows_the_umask(tmp_path):
    before = os.umask(0o002)
    try:
        write_whole(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o664


def test_a_long_name_is_written(tmp_path):
    write_whole(tmp_path / ("x" * 250), "x")
    assert os.listdir(tmp_path) == ["x" * 250]


@pytest.mark.parametrize("call", ["open", "write", "replace"])
def test_a_disk_that_refuses_is_told_with_the_name_of_the_file(tmp_path, monkeypatch, call):
    def refuse(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full:
        write = refuse

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    if call == "write":
        monkeypatch.setattr(monograph.whole_file, "open", lambda file, mode: os.close(file) or Full(), raising=False)
    else:
        monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="No space") as caught:
        write_whole(tmp_path / "page.html", "x")
    assert caught.value.filename == str(tmp_path / "page.html")
    with pytest.raises(MonographError, match=rf"{tmp_path}/page\.html cannot be written\nwhy: No space"):
        write_output(tmp_path / "page.html", "x")
    assert os.listdir(tmp_path) == []


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.symlink_to("elsewhere"), "it is a link to elsewhere"),
        (lambda path: path.symlink_to("/etc/passwd"), "it is a link to /etc/passwd"),
        (lambda path: path.symlink_to(path.name), "it is a link to "),
        (lambda path: path.symlink_to("a\nb\x1b[2J"), r"it is a link to a\\nb\\x1b"),
        (lambda path: path.mkdir(), "it is a folder"),
        (os.mkfifo, "it is not a regular file"),
        (make_socket, "it is not a regular file"),
    ],
)
def test_a_name_that_is_no_file_is_refused_before_the_work_and_after_it(tmp_path, monkeypatch, make, reason):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "out"
    make(monograph.whole_file.Path("out"))
    before = path.lstat().st_ino
    with pytest.raises(ConfigError, match=f"--out {path}\nwhy: {reason}"):
        check_output("--out", str(path))
    with pytest.raises(MonographError, match=f"{path} cannot be written\nwhy: {reason}"):
        write_output(path, "x")
    assert path.lstat().st_ino == before and os.listdir(tmp_path) == ["out"]


def test_links_above_a_name_are_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "linked").symlink_to("disk")
    check_output("--out", str(tmp_path / "linked" / "out"))
    write_output(tmp_path / "linked" / "out", "x")
    assert (tmp_path / "disk" / "out").read_text() == "x"


def test_open_streams_are_written_to_and_never_replaced(tmp_path, capfd):
    before = os.lstat("/dev/null").st_ino
    for name in ("/dev/null", "/dev/stdout", "/dev/fd/2"):
        check_output("--out", name)
        write_output(monograph.whole_file.Path(name), "text\n")
    assert capfd.readouterr() == ("text\n", "text\n")
    assert os.lstat("/dev/null").st_ino == before and stat.S_ISCHR(os.lstat("/dev/null").st_mode)


def commands_with_output(folder):
    run, report = make_run(folder / "run"), write_report(folder / "report", make_step_report())
    (folder / "t.json").write_text('[{"ph": "X", "name": "step", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]')
    trace = folder / "t.json"
    return {
        "watch": (f"watch {run} --out", "html"),
        "report compare": (f"report compare {report} {report} --out", "html"),
        "trace join": (f"trace join {trace} {trace} --out", "json"),
        "plan": ("plan llama3_debugmodel --gpus 1 --json", "json"),
        "bench": ("bench llama3_debugmodel --out", "json"),
        "machine": ("machine measure --out", "json"),
        "launch": ("launch llama3_debugmodel --on torchrun --nodes 1 --gpus_per_node 1 --out", "sh"),
    }


NAMES = ("watch", "report compare", "trace join", "plan", "bench", "machine", "launch")


@pytest.mark.parametrize("name", NAMES)
def test_every_command_refuses_a_dangling_link_as_its_output(tmp_path, capsys, name):
    words, ending = commands_with_output(tmp_path)[name]
    out = tmp_path / f"out.{ending}"
    out.symlink_to("nowhere/x")
    assert cli.main([*words.split(), str(out)]) == 2
    assert f"{out}\n  why: it is a link to nowhere/x" in capsys.readouterr().err
    assert out.is_symlink()


@pytest.mark.parametrize("name", ["watch", "report compare", "trace join", "plan", "bench", "machine"])
def test_a_file_of_another_kind_is_not_replaced(tmp_path, capsys, name):
    """One completed name too far, and the output would replace the records or the weights of a run."""
    words, ending = commands_with_output(tmp_path)[name]
    out = tmp_path / "metrics.jsonl"
    out.write_text("{}\n")
    assert cli.main([*words.split(), str(out)]) == 2
    assert f".{ending} file" in capsys.readouterr().err and out.read_text() == "{}\n"


@pytest.mark.parametrize("name", ["watch", "report compare", "trace join"])
def test_a_full_disk_names_the_output(tmp_path, capsys, monkeypatch, name):
    words, ending = commands_with_output(tmp_path)[name]
    out = tmp_path / f"out.{ending}"

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    assert cli.main([*words.split(), str(out)]) == 1
    assert f"{out} cannot be written" in capsys.readouterr().err


def test_a_folder_in_place_of_the_file_is_named(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(IsADirectoryError) as failed:
        write_whole(tmp_path / "out", "new")
    assert failed.value.filename == str(tmp_path / "out") and os.listdir(tmp_path) == ["out"]


def test_a_folder_that_cannot_be_made_is_refused_and_none_is_left_behind(tmp_path):
    (tmp_path / "file").write_text("")
    check_output_folder("--out", str(tmp_path / "new" / "deeper"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    with pytest.raises(ConfigError, match="is not a folder"):
        check_output_folder("--out", str(tmp_path / "file" / "deeper"))
    with pytest.raises(ConfigError, match="no folder can be made in /proc"):
        check_output_folder("--job.dump_folder", "/proc/q")


def test_a_link_to_a_disk_that_is_not_there_is_no_place_for_a_new_folder(tmp_path):
    """A run there would begin at step 1 beside the one that its disk has."""
    (tmp_path / "run").symlink_to("gone/run")
    for name in ("run", "run/deeper"):
        with pytest.raises(ConfigError, match="run is a link to gone/run, which is not there"):
            check_output_folder("--job.dump_folder", str(tmp_path / name))
    (tmp_path / "gone" / "run").mkdir(parents=True)
    check_output_folder("--job.dump_folder", str(tmp_path / "run"))
