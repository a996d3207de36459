"""watch on folders that were downloaded, shared or damaged: the page says what it cannot read, and shows the rest."""

import json
import os
import time

import pytest

from monograph import cli, strict_json
from monograph.locks.folder_lock import LOCK_NAME
from monograph.report.page import make_run_page
from monograph.watch import record_tail
from monograph.watch.runs import RunReader, collect_runs, make_readers
from tests.watch.run_folders import add_restart, make_record, make_run

DEEP = "[" * 100_000
HUGE = 10**400


def collect(folder):
    """The run as a browser gets it: standard JSON without infinities."""
    start = time.monotonic()
    runs = collect_runs(make_readers([folder]), is_live=True)
    assert make_run_page(runs) and time.monotonic() - start < 2
    (run,) = json.loads(strict_json.dump(runs), parse_constant=pytest.fail)["runs"]
    check_numbers(run)
    return run


def check_numbers(value):
    """Nothing that a script would call a method of is null or too large where a number belongs."""
    for rows in (value["expert_load"], value["bubble"]):
        assert all(isinstance(number, int | float) for column in rows["values"] for number in column)
        assert {len(column) for column in rows["values"]} <= {rows["rows"]}
    for points in value["curves"].values():
        assert all(isinstance(number, int | float) and abs(number) < 1e100 for point in points for number in point)
    assert "non_finite" not in value


@pytest.mark.parametrize(
    "record",
    [
        {"expert_load": {}},
        {"expert_load": {"max_over_mean": 5}},
        {"expert_load": {"max_over_mean": ["high", None]}},
        {"expert_load": {"max_over_mean": [HUGE]}},
        {"expert_load": {"max_over_mean": [1.0] * 3000}},
        {"expert_load": [1, 2]},
        {"pipeline_bubble": []},
        {"pipeline_bubble": [[1]]},
        {"pipeline_bubble": {"a": 1}},
        {"goodput": {"steps": "much"}},
        {"goodput": {}},
        {"goodput": {"steps": HUGE}},
        {"goodput": ["steps"]},
        {"time": "noon"},
        {"time": None},
        {"time": -HUGE},
        {"ms": "x"},
        {"loss": HUGE, "grad_norm": True, "lr": [], "mfu": {"a": 1}},
        {"loss": "low", "tokens_per_second": "many"},
        {"non_finite": {"loss": "nan", "grad_norm": "inf"}},
        {"non_finite": {"step": "inf"}},
        {"non_finite": {"expert_load/max_over_mean/0": "nan"}},
        {"non_finite": {"a/b/c": "nan"}},
        {"non_finite": {"loss": []}},
        {"step": HUGE},
        {"step": 1 << 60},
        {"step": 1.5},
        {"step": True},
    ],
    ids=str,
)
def test_records_with_odd_values_leave_the_other_records_as_they_are(tmp_path, record):
    folder = make_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(make_record(41) | record) + "\n")
    run = collect(folder)
    assert len(run["curves"]["ms"]) >= 40 and run["goodput"]["parts"] and run["warnings"][1:] == []
    (folder / "metrics.jsonl").write_text(json.dumps(make_record(41) | record) + "\n")
    collect(folder)


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        '{"step": ' + DEEP,
        '{"step": 1, "loss": ' + "9" * 5000 + "}",
        '{"step": 1, "loss": NaN}',
        '{"step": 1, "a": ' + "[" * 900 + "]" * 900 + ', "non_finite": {}}',
        "\x00" * 100,
        "\udcff\udcfe",
        '{"step": 1}\r{"step": 2}',
        "null",
        '"step"',
        "[]",
    ],
    ids=lambda line: repr(line[:20]),
)
def test_lines_that_are_no_records_are_passed_over(tmp_path, line):
    folder = make_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(line.encode("utf-8", "surrogateescape") + b"\n" + json.dumps(make_record(41)).encode() + b"\n")
    assert collect(folder)["last"]["step"] == 41


@pytest.mark.parametrize(
    "change",
    [
        {"time": "x"},
        {"time": None},
        {"time": HUGE},
        {"step": "x"},
        {"seconds": {"steps": "many"}},
        {"seconds": {}},
        {"seconds": 5},
        {"lost_steps": []},
        {"lost_seconds": "1"},
        {"event": ["end"]},
        {"ranks": "two"},
        {"event": "end"},
    ],
    ids=str,
)
def test_events_with_odd_values_are_passed_over(tmp_path, change):
    folder = add_restart(make_run(tmp_path / "run"))
    lines = (folder / "goodput.jsonl").read_text().splitlines()
    for number in range(3):
        odd = [*lines]
        odd[number] = json.dumps(json.loads(odd[number]) | change)
        (folder / "goodput.jsonl").write_text("\n".join(odd) + f"\n{DEEP}\n")
        assert collect(folder)["goodput"]["parts"]
        assert cli.main(["goodput", str(folder)]) in (0, 2)


def make_folder(path):
    path.mkdir()


def make_endless(path):
    path.symlink_to("/dev/zero")


def make_loop(path):
    path.symlink_to(path.name)


def make_sparse(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    "odd", [make_folder, os.mkfifo, make_endless, make_loop, make_sparse], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json", "goodput.jsonl", LOCK_NAME, "logs/rank-0.log"])
def test_special_files_are_named_on_the_page_and_the_rest_is_shown(tmp_path, monkeypatch, name, odd):
    monkeypatch.setattr(record_tail, "MAX_LINE_BYTES", 1 << 22)
    folder = add_restart(make_run(tmp_path / "run"))
    path = folder / name
    path.unlink(missing_ok=True)
    odd(path)
    run = collect(folder)
    is_quiet = name == LOCK_NAME or (name, odd) in (
        ("logs/rank-0.log", make_sparse),
        ("goodput.jsonl", make_folder),  # the time is then summed up from metrics.jsonl
        ("goodput.jsonl", make_loop),
    )
    assert is_quiet or any(str(path) in line for line in run["warnings"]), run["warnings"]
    assert run["checkpoints"] == [20]
    assert name == "metrics.jsonl" or run["last"]["step"] == 40
    assert name == "config.json" or run["steps"] == 40


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json"])
def test_what_cannot_be_read_is_refused_before_the_page_is_written(tmp_path, capsys, name):
    folder = make_run(tmp_path / "run")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert cli.main(["watch", str(folder), "--out", str(tmp_path / "page.html")]) == 2
    assert f"cannot read {folder / name}" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_file_that_becomes_odd_while_it_is_watched_is_read_again_once_it_is_whole(tmp_path):
    folder = make_run(tmp_path / "run", steps=10)
    reader, path = RunReader(folder), folder / "metrics.jsonl"
    assert reader.collect()["last"]["step"] == 10
    path.rename(tmp_path / "kept")
    os.mkfifo(path)
    assert any("metrics.jsonl: it is not a regular file" in line for line in reader.collect()["warnings"])
    path.unlink()
    (tmp_path / "kept").rename(path)
    again = reader.collect()
    assert again["last"]["step"] == 10 and len(again["curves"]["loss"]) == 10 and len(again["warnings"]) == 1


@pytest.mark.parametrize("steps", [None, "40", True, -1, 1 << 60, [40], {"a": 1}, 1.5])
def test_a_number_of_steps_that_is_none_counts_as_unknown(tmp_path, steps):
    folder = make_run(tmp_path / "run")
    (folder / "config.json").write_text(json.dumps({"training": {"steps": steps}}))
    assert (collect(folder)["steps"], collect(folder)["state"]) == (0, "ended")
    for content in (DEEP, "[]", "5", '{"training": 5}', "{", "\x00", '{"training": {"steps": 1}, "training": 2}'):
        (folder / "config.json").write_text(content)
        assert collect(folder)["steps"] == 0


def test_odd_names_of_checkpoints_are_no_checkpoints(tmp_path):
    folder = make_run(tmp_path / "run")
    for name in ("step-" + "9" * 200, "step-x", "step--5", "step-\u0664\u0662", "step-", "step-1e3"):
        (folder / "checkpoints" / name).mkdir()
    os.mkfifo(folder / "checkpoints" / "step-00000077")
    assert collect(folder)["checkpoints"] == [20, 42]
    (folder / LOCK_NAME).write_text(DEEP)
    assert collect(folder)["state"] == "finished"
