"""Chrome traces of chosen steps."""

import json

import pytest

from monograph.run import train
from monograph.train.config import ProfilerConfig
from tests.kit.runs import tiny_run


def names(folder):
    return sorted(path.name for path in folder.glob("**/*.json"))


def step_through(profiler, steps):
    for step in steps:
        profiler.before_step(step)
        profiler.after_step(step)


def test_a_window_of_a_run_becomes_a_trace_that_any_viewer_reads(tmp_path):
    train(tiny_run(tmp_path, {"profiler.start": 2, "profiler.steps": 2, "training.steps": 4}))
    assert names(tmp_path / "traces") == ["steps-2-3-rank-0.json"]
    trace = json.loads((tmp_path / "traces" / "steps-2-3-rank-0.json").read_text())
    operations = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
    assert operations.count("aten::_fused_adamw_") == 2 * 2, "two steps, each with matrices and vectors"
    ranges = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    assert [name for name in ranges if name.startswith("step")] == ["step 2", "step 3"], "what `trace join` looks for"


def test_nothing_is_written_when_no_window_is_asked_for(tmp_path):
    train(tiny_run(tmp_path))
    assert not (tmp_path / "traces").exists()


@pytest.mark.parametrize(
    ("settings", "steps", "written"),
    [
        ({"start": 2, "steps": 1}, range(1, 6), ["steps-2-2-rank-3.json"]),
        ({"start": 1, "steps": 2, "every": 3}, range(1, 6), ["steps-1-2-rank-3.json", "steps-4-5-rank-3.json"]),
        ({"start": 4, "steps": 5}, range(1, 6), ["steps-4-5-rank-3.json"]),
        ({"start": 4, "steps": 2}, range(5, 8), []),
    ],
    ids=["one window", "a window every three steps", "cut short by the end", "already past when the run resumes"],
)
def test_windows_open_and_close_at_the_steps_they_are_named_after(tmp_path, settings, steps, written):
    profiler = ProfilerConfig(**settings).build(folder=tmp_path, rank=3)
    step_through(profiler, steps)
    profiler.close()
    profiler.close()
    assert names(tmp_path) == written
