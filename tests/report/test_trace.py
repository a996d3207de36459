"""Traces: predicted steps and pipelines, and a measured step beside its prediction, in the format viewers read."""

import json
import os

import jsonschema
import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from monograph import cli
from monograph.execute.trace_marks import MARK, STEP_MARK
from monograph.graph.cost import find_node_costs
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.timeline import find_timeline
from monograph.report.join_traces import cut_step, join_traces
from monograph.report.trace import make_pipeline_trace, make_trace
from tests.report.reports import FACTS, make_graph, make_simulation
from tests.report.trace_format import SCHEMA, check_nesting


def predict():
    graph = make_graph().module.graph
    timeline = find_timeline(graph, find_node_costs(graph, LikelySizes(graph), FACTS).seconds)
    return timeline, make_trace(timeline, name="a step")


def check(trace):
    jsonschema.validate(json.loads(json.dumps(trace)), SCHEMA)
    check_nesting(trace["traceEvents"])


def slices(events, **wanted):
    return [each for each in events if each["ph"] == "X" and all(each.get(k) == v for k, v in wanted.items())]


def test_a_predicted_step_has_modules_ops_and_collectives():
    timeline, trace = predict()
    check(trace)
    events = trace["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} == {"compute", "g"}
    assert [event["name"] for event in slices(events, cat="module")][:2] == [
        "layers.0.work forward",
        "layers.1.work forward",
    ]
    ops = slices(events, cat="compute")
    assert max(each["ts"] + each["dur"] for each in ops) == pytest.approx(1e6 * timeline.total_seconds)
    assert ops[0]["args"] == {"module": "layers.0.work", "direction": "forward"}
    assert [each["args"]["group"] for each in slices(events, cat="collective")] == ["g"] * 3


def test_a_predicted_pipeline_has_a_thread_and_a_memory_counter_for_every_rank():
    _, _, simulation = make_simulation()
    trace = make_pipeline_trace(simulation, name="a pipeline")
    check(trace)
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {f"memory of rank {rank}" for rank in range(4)}
    peak = max(event["args"]["GiB"] for event in counters)
    assert peak == pytest.approx(max(simulation.peak_bytes) / 2**30)
    assert len(slices(trace["traceEvents"])) == sum(map(len, simulation.spans))


def measure(path):
    """Two steps under torch's profiler, with a module's range inside."""
    a = torch.ones(64, 64)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for step in (7, 8):
            with record_function(f"{STEP_MARK} {step}"), record_function(f"{MARK}layers.0.work forward"):
                a @ a
            torch.relu(a)
    found.export_chrome_trace(str(path))


def test_a_measured_step_stands_beside_its_prediction(tmp_path):
    (tmp_path / "predicted.json").write_text(json.dumps(predict()[1]))
    measure(tmp_path / "measured.json")
    words = [str(tmp_path / name) for name in ("predicted.json", "measured.json")]
    assert cli.main(["trace", "join", *words, "--out", str(tmp_path / "both.json")]) == 0
    both = json.loads((tmp_path / "both.json").read_text())
    check(both)
    events = both["traceEvents"]
    titles = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(title.split(":")[0] for title in titles.values()) == ["measured", "predicted"]
    for kind in ("predicted", "measured"):
        found = [each for each in slices(events) if titles[each["pid"]].startswith(kind)]
        assert min(each["ts"] for each in found) == pytest.approx(0, abs=1)
        assert any(each["args"].get("module") == "layers.0.work" for each in found), "the same name in both"
    assert [each["name"] for each in slices(events) if each["name"].startswith("step")] == ["step 8"]
    names = {each["name"] for each in slices(events)}
    assert "aten::mm" in names and "aten::relu" not in names, "what ran between steps is left out"


def test_what_runs_on_a_device_belongs_to_the_step_by_its_range_there():
    step = {"ph": "X", "name": "step", "pid": 1, "tid": 1}
    kernel = {"ph": "X", "name": "kernel", "cat": "kernel", "pid": 0, "tid": 7, "dur": 5}
    events = [
        step | {"cat": "user_annotation", "ts": 100, "dur": 10},
        step | {"cat": "user_annotation", "ts": 120, "dur": 10},
        step | {"cat": "gpu_user_annotation", "pid": 0, "ts": 115, "dur": 20},
        step | {"cat": "gpu_user_annotation", "pid": 0, "ts": 140, "dur": 30},
        *(kernel | {"ts": ts} for ts in (116, 122, 141, 160)),
    ]
    found = cut_step(events)
    assert [each["ts"] for each in found if each["name"] == "kernel"] == [21, 40]
    assert [each["ts"] for each in found if each["name"] == "step"] == [0, 20]


@pytest.mark.parametrize(
    "content",
    [
        *(
            '["ph"]',
            "5",
            "[" * 100_000,
            '{"traceEvents": 5}',
            '{"traceEvents": null}',
            "\x00",
            '{"traceEvents": ["ph"]}',
        ),
        *('[{"ph": "X"}]', '[{"ph": "X", "pid": [], "ts": 1}]', '[{"ph": "X", "pid": 1, "ts": "x"}]'),
        *('[{"ph": "M", "pid": 1}]', '[{"ph": "M", "pid": 1, "name": "process_name"}]', '[{"ph": "M", "name": 5}]'),
        *('[{"ph": "X", "name": "step", "pid": 1, "ts": 1}]', '[{"ph": "X", "pid": 1, "ts": 1, "args": [1]}]'),
        *('[{"ph": "X", "name": "step", "pid": 1, "ts": 1, "dur": "x"}]', '[{"ph": [], "pid": 1, "tid": {}, "ts": 1}]'),
    ],
)
def test_odd_traces_are_refused_in_words(tmp_path, capsys, content):
    step = '[{"ph": "X", "name": "step", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]'
    for name, text in (("odd", content), ("good", step)):
        (tmp_path / f"{name}.json").write_text(text)
    good, odd, out = (str(tmp_path / f"{name}.json") for name in ("good", "odd", "both"))
    for words in ([odd, good], [good, odd]):
        assert cli.main(["trace", "join", *words, "--out", out]) == 2
        assert f"{odd} is not a Chrome trace" in capsys.readouterr().err


def test_a_joined_trace_replaces_none_of_its_inputs_under_whatever_name(tmp_path, capsys):
    step = '[{"ph": "X", "name": "step", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]'
    a, b, c, linked = (tmp_path / f"{name}.json" for name in ("a", "b", "c", "linked"))
    for path in (a, b, c):
        path.write_text(step)
    linked.hardlink_to(b)
    for out in (a, b, c, linked, tmp_path / ".." / tmp_path.name / "b.json"):
        assert cli.main(["trace", "join", str(a), str(b), "--names", str(c), "--out", str(out)]) == 2
        assert "it would replace" in capsys.readouterr().err
    assert {path.read_text() for path in (a, b, c)} == {step}


def test_a_fifo_is_no_trace(tmp_path, capsys):
    os.mkfifo(tmp_path / "fifo.json")
    words = [str(tmp_path / "fifo.json")] * 2
    assert cli.main(["trace", "join", *words, "--out", str(tmp_path / "both.json")]) == 2
    assert "it is not a regular file" in capsys.readouterr().err


def test_what_is_no_trace_or_has_no_step_is_refused(tmp_path, capsys):
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    (tmp_path / "other.json").write_text('{"a": 1}')
    out = ["--out", str(tmp_path / "both.json")]
    for measured, reason in [
        ("empty", "has no step in it"),
        ("other", "is not a Chrome trace"),
        ("none", "cannot be read"),
    ]:
        words = [str(tmp_path / "empty.json"), str(tmp_path / f"{measured}.json")]
        assert cli.main(["trace", "join", *words, *out]) == 2
        assert f"{words[1]} {reason}" in capsys.readouterr().err
    assert join_traces([], [{"ph": "X", "name": "step", "ts": 5, "dur": 1, "pid": "x", "tid": "y"}]).trace[
        "traceEvents"
    ]


def test_a_trace_with_a_hole_of_100_gb_is_refused_unread(tmp_path, capsys):
    (tmp_path / "huge.json").write_text("[]")
    os.truncate(tmp_path / "huge.json", 100 << 30)
    words = [str(tmp_path / "huge.json")] * 2
    assert cli.main(["trace", "join", *words, "--out", str(tmp_path / "both.json")]) == 2
    assert "huge.json" in (said := capsys.readouterr().err) and "larger than 2048 MiB" in said
