"""`monograph report compare`: two reports on one page."""

import json
import os

import pytest

from monograph import cli
from monograph.report.compare import join_reports
from tests.report.reports import make_pipeline_report, make_step_report


def write(folder, report):
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(report))
    return str(folder)


def test_two_steps_become_one_report_with_the_difference_of_their_graphs(tmp_path, capsys):
    left, right = make_step_report("left"), make_step_report("right", is_changed=False)
    right["passes"].append(right["passes"][0] | {"name": "only_there"})
    found = join_reports(left, right)
    assert (found["run"]["recipe"], found["against"]["recipe"]) == ("left", "right")
    assert found["captured"]["cost"]["nodes"] - found["final"]["cost"]["nodes"] == 3
    gone = [line[:4] for line in found["diff"].splitlines() if "relu" in line]
    assert gone == ["  - "] * 2, "in the first block, and in all others"
    assert [(row["name"], row["a"] is None) for row in found["passes"]][-1] == ("only_there", True)
    folders = [write(tmp_path / name, each) for name, each in (("a", left), ("b", right))]
    assert cli.main(["report", "compare", *folders, "--out", str(tmp_path / "page.html")]) == 0
    assert "page.html" in capsys.readouterr().out
    assert '"against":{' in (tmp_path / "page.html").read_text()


def test_what_cannot_be_compared_is_refused(tmp_path, capsys):
    step, pipeline = write(tmp_path / "step", make_step_report()), write(tmp_path / "pipe", make_pipeline_report())
    old = write(tmp_path / "old", {"run": {}})
    odd = [
        {"graphs": 5},
        {"run": 5},
        {"final": []},
        {"final": {}},
        {"code": 1},
        {"passes": [5]},
        {"passes": [{"name": []}]},
    ]
    odd += [{"graphs": {"versions": []}}, {"graphs": {"versions": [{"parts": [{"body": 99}]}], "bodies": []}}]
    for outside, line in (("", "1: f.1 = mul(in7)"), (" (in0 = 5)", "1: f.1 = mul(in0)")):
        part = {"body": 0, "name": "forward", "outside": outside}
        odd.append({"graphs": {"versions": [{"parts": [part]}], "bodies": [{"text": line}]}})
    broken = [write(tmp_path / f"odd{number}", make_step_report() | each) for number, each in enumerate(odd)]
    for name, content in (("deep", "[" * 100_000), ("list", "[]"), ("text", "\udcff")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    (tmp_path / "pipe-file").mkdir()
    os.mkfifo(tmp_path / "pipe-file" / "report.json")
    broken += [str(tmp_path / name) for name in ("deep", "list", "text", "pipe-file")]
    out = ["--out", str(tmp_path / "page.html")]
    for words, reason in [
        ([step, pipeline, *out], "one report is of a pipeline"),
        ([step, str(tmp_path / "none"), *out], "monograph inspect writes it"),
        ([step, old, *out], "is not a report of this version"),
        *(([step, each, *out], f"{each}/report.json is not a report of this version") for each in broken),
        ([step, step], "--out is missing"),
        ([step, step, "--out", str(tmp_path / "page.txt")], "it is a .html file"),
        ([step, step, "--out", str(tmp_path / "none" / "page.html")], "there is no folder"),
        ([step, pipeline, "--out", str(tmp_path / "pipe" / "index.html")], f"it would replace {pipeline}"),
    ]:
        assert cli.main(["report", "compare", *words]) == 2
        assert reason in capsys.readouterr().err
    with pytest.raises(FileNotFoundError):
        (tmp_path / "page.html").stat()
