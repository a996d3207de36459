"""Goodput: every second of a job is in exactly one place, over kills and restarts."""

import json
import time

import pytest

from monograph.cli import main
from monograph.train.goodput import KINDS, describe_end, read_events, summarize, summarize_finished
from tests.kit.runs import open_trainer, read_records, tiny_run
from tests.train import processes


def write_job(folder, events, records):
    folder.mkdir(exist_ok=True)
    (folder / "goodput.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "sta')
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def record(step, at, steps, **seconds):
    goodput = dict.fromkeys(KINDS, 0.0) | {"steps": steps, **seconds}
    return {"step": step, "time": at, "ms": 1000.0, "goodput": goodput}


def test_a_killed_run_counts_what_it_did_again_as_lost_and_the_gap_as_a_restart(tmp_path):
    first = {"event": "start", "time": 100.0, "step": 0, "ranks": 2}
    write_job(tmp_path, [first], [record(n, 110.0 + n, float(n), start_up=10.0) for n in range(1, 8)])
    end = describe_end(tmp_path, kept_step=5)
    assert end == {
        "event": "end",
        "time": 117.0,
        "step": 7,
        "seconds": record(7, 0, 7.0, start_up=10.0)["goodput"],
        "lost_steps": 2,
        "lost_seconds": 2.0,
    }
    second = {"event": "start", "time": 120.0, "step": 5, "ranks": 2}
    useless = {"event": "start", "time": 125.0, "step": 5, "ranks": 2}
    third = {"event": "start", "time": 130.0, "step": 5, "ranks": 2}
    records = [record(n, 110.0 + n, float(n), start_up=10.0) for n in range(1, 6)]
    records += [record(n, 135.0 + n, n - 5.0, start_up=4.0, compile=6.0) for n in range(6, 9)]
    write_job(tmp_path, [first, end, second, useless, third], records)
    found = summarize(tmp_path)
    assert (found.starts, found.lost_steps, found.last_step) == (4, 2, 8)
    assert found.total_seconds == 43.0
    assert found.restart_seconds == 3.0 + 5.0 + 5.0, "two processes left no record at all"
    assert dict(found.rows()) == {
        "steps": 8.0,
        "start-up": 14.0,
        "compile": 6.0,
        "data": 0.0,
        "checkpoint": 0.0,
        "validation": 0.0,
        "checks": 0.0,
        "lost steps": 2.0,
        "restarts": 13.0,
        "other": 0.0,
    }
    assert found.goodput == pytest.approx(8 / 43)


def test_a_run_that_is_killed_and_started_again_reports_all_of_its_time(tmp_path, capsys):
    changes = {"training.steps": 40, "checkpoint.interval": 2, "checkpoint.load": "auto", "validator.interval": 10}
    config = tiny_run(tmp_path, changes)
    process = processes.start(config)
    path = tmp_path / "metrics.jsonl"
    processes.wait_until(lambda: path.exists() and b'"step": 5,' in path.read_bytes(), process)
    processes.kill(process)
    time.sleep(0.3)
    before = {each["step"] for each in read_records(tmp_path)}
    assert processes.run(config) == 0
    events = read_events(tmp_path)
    assert [event["event"] for event in events] == ["start", "end", "start", "finish"], "the first was killed"
    found = summarize(tmp_path)
    assert found.starts == 2 and found.last_step == 40
    assert found.lost_steps == max(before) - events[2]["step"]
    assert found.restart_seconds >= 0.3 and found.seconds["checkpoint"] > 0 and found.seconds["validation"] > 0
    parts = dict(found.rows())
    assert sum(parts.values()) == pytest.approx(found.total_seconds, rel=0.01)
    assert main(["goodput", str(tmp_path)]) == 0
    assert "2 starts" in capsys.readouterr().out
    assert main(["goodput", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lost_steps"] == found.lost_steps
    assert main(["goodput", str(tmp_path / "nowhere")]) == 2


def slow_down(monkeypatch, owner, name, seconds):
    call = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: (time.sleep(seconds), call(*args, **kwargs))[1])


def test_the_last_validation_and_checkpoint_are_part_of_the_goodput(tmp_path, monkeypatch):
    changes = {"training.steps": 2, "validator.interval": 2, "checkpoint.async_save": True}
    with open_trainer(tiny_run(tmp_path, changes)) as trainer:
        slow_down(monkeypatch, trainer.validator, "run", 0.3)
        slow_down(monkeypatch, trainer.checkpoints, "_write", 0.4)
        found = trainer.train()
    assert found.goodput.seconds["validation"] == found.seconds["validation"] >= 0.3
    assert found.goodput.seconds["checkpoint"] == found.seconds["checkpoint"] >= 0.4  # of an asynchronous save
    assert summarize(tmp_path) == found.goodput
    assert sum(seconds for _, seconds in found.goodput.rows()) == pytest.approx(found.goodput.total_seconds, rel=0.01)


def test_a_run_that_goes_on_after_its_last_line_counts_that_line_and_the_gap(tmp_path):
    first = {"event": "start", "time": 100.0, "step": 0, "ranks": 1}
    finish = {"event": "finish", "time": 130.0, "seconds": record(0, 0, 7.0, start_up=10.0, checkpoint=13.0)["goodput"]}
    records = [record(n, 110.0 + n, float(n), start_up=10.0) for n in range(1, 8)]
    write_job(tmp_path, [first, finish], records)
    end = describe_end(tmp_path, kept_step=5)
    assert (end["time"], end["step"], end["lost_steps"], end["lost_seconds"]) == (130.0, 7, 2, 2.0)
    second = {"event": "start", "time": 134.0, "step": 5, "ranks": 1}
    write_job(tmp_path, [first, finish, end, second], [*records[:5], record(6, 136.0, 1.0, start_up=1.0)])
    found = summarize(tmp_path)
    assert (found.starts, found.restart_seconds, found.total_seconds) == (2, 4.0, 36.0)
    assert found.seconds["checkpoint"] == 13.0 and found.seconds["steps"] == 5.0 + 1.0


def test_waiting_for_data_is_not_counted_as_a_step(tmp_path):
    with open_trainer(tiny_run(tmp_path, {"training.steps": 2, "checkpoint.enabled": False})) as trainer:
        read = trainer.data.batches

        def read_slowly(*args, **kwargs):
            feeder = read(*args, **kwargs)
            take = feeder._queue.take
            feeder._queue.take = lambda: (time.sleep(0.3), take())[1]
            return feeder

        trainer.data.batches = read_slowly
        trainer.train()
    last = read_records(tmp_path)[-1]["goodput"]
    assert last["data"] >= 0.6


@pytest.mark.parametrize(
    "line",
    [
        {"event": "start", "time": "x", "step": 0},
        {"event": "start", "time": float("inf"), "step": 0},
        {"event": "end", "time": 1, "step": 2},
        {"event": "end", "time": 1, "step": 2, "seconds": {"steps": "long"}, "lost_steps": 0, "lost_seconds": 0},
        {"event": "end", "time": 1, "step": 2, "seconds": [], "lost_steps": 0, "lost_seconds": 0},
        {"event": "finish", "time": 1, "seconds": {"checkpoint": 5}},
    ],
)
def test_lines_with_odd_values_are_passed_over(tmp_path, line):
    start = {"event": "start", "time": 100.0, "step": 0, "ranks": 1}
    write_job(tmp_path, [line, start, line], [record(1, 102.0, 1.0), {"step": 2, "goodput": 5, "time": "x"}])
    assert read_events(tmp_path) == [start]
    assert summarize(tmp_path).total_seconds == 2.0


def test_a_file_of_times_that_cannot_be_read_is_named_and_ends_no_run(tmp_path, capsys):
    (tmp_path / "goodput.jsonl").symlink_to("/dev/zero")
    assert main(["goodput", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"cannot read {tmp_path / 'goodput.jsonl'}" in said and "it is not a regular file" in said
    assert summarize_finished(tmp_path) is None and describe_end(tmp_path, kept_step=0) is None
