"""The folder of a report: what an earlier one wrote is replaced, and nothing else."""

import json
import os

import pytest

from monograph import cli
from monograph.errors import ConfigError
from monograph.report.folder import ReportFolder, check_folder

RUN = {"run": {"command": "monograph inspect llama3"}}


def write_report(folder, *names):
    report = ReportFolder(folder)
    report.begin()
    for name in names:
        report.write(name, "graph")
    return report


def list_names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_report_replaces_the_files_of_an_earlier_one_and_no_others(tmp_path):
    write_report(tmp_path, "00-captured.txt", "01-a.txt", "stage-00.txt").finish(RUN)
    for name in ("02-notes.txt", "stage-05.txt", "mine.md"):
        (tmp_path / name).write_text("mine")
    write_report(tmp_path, "00-captured.txt").finish(RUN)
    assert list_names(tmp_path) == ["00-captured.txt", "02-notes.txt", "mine.md", "report.json", "stage-05.txt"]


def test_a_report_that_was_interrupted_is_replaced(tmp_path):
    write_report(tmp_path, "00-captured.txt", "01-a.txt")
    write_report(tmp_path, "00-captured.txt").finish(RUN)
    assert list_names(tmp_path) == ["00-captured.txt", "report.json"]


@pytest.mark.parametrize("name", ["index.html", "01-intro.txt", "00-captured.txt", "schedule.csv", "stage-00.txt"])
def test_a_folder_with_files_of_these_names_and_no_report_is_refused(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"it holds {name}"):
        write_report(tmp_path)
    assert (tmp_path / name).read_text() == "mine" and list_names(tmp_path) == [name]


def test_a_web_project_is_refused_before_anything_is_captured(tmp_path, capsys):
    (tmp_path / "index.html").write_text("my page")
    assert cli.main(["inspect", "llama3_debugmodel", "--out", str(tmp_path)]) == 2
    assert "it holds index.html" in capsys.readouterr().err
    assert list_names(tmp_path) == ["index.html"]


@pytest.mark.parametrize("content", ["{}", "[]", "x", "[" * 5000, '{"run": {"command": "rm"}}', '{"files": ["a"]}'])
def test_another_report_json_is_refused(tmp_path, content):
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(ConfigError, match=r"report\.json"):
        check_folder(str(tmp_path))
    assert (tmp_path / "report.json").read_text() == content


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.mkdir()])
def test_a_report_json_that_is_no_file_is_refused(tmp_path, make):
    make(tmp_path / "report.json")
    with pytest.raises(ConfigError, match=f"--out {tmp_path}"):
        check_folder(str(tmp_path))


def test_a_list_of_files_leads_to_none_outside_of_the_folder(tmp_path):
    outside, folder = tmp_path / "victim.txt", tmp_path / "report"
    outside.write_text("mine")
    folder.mkdir()
    (folder / "01-a.txt").symlink_to(outside)
    (folder / "02-notes.md").write_text("mine")
    files = ["../victim.txt", str(outside), "01-a.txt", "02-notes.md", 5, None, "", "."]
    (folder / "report.json").write_text(json.dumps(RUN | {"files": files}))
    write_report(folder, "01-a.txt").finish(RUN)
    assert outside.read_text() == "mine"
    assert (folder / "01-a.txt").read_text() == "graph" and not (folder / "01-a.txt").is_symlink()
    assert (folder / "02-notes.md").exists()
