"""benchmarks/modes.py: a row per mode, from what each run wrote about itself."""

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "modes.py"
TINY = "tests.kit.runs:tiny"


@pytest.fixture(scope="module")
def modes():
    spec = importlib.util.spec_from_file_location("benchmark_modes", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(step, speed, **more):
    return {"step": step, "tokens_per_second": speed, "ms": 1e6 / speed, "peak_memory_gib": 1.0, "loss": 4.0} | more


LOG = "12:00:01 trainer time to the first step\n12:00:01 trainer   import  1.50 s\n12:00:01 trainer   total  12.25 s\n"


def test_a_row_is_the_median_after_the_warm_up_and_the_peak_of_all_steps(modes):
    records = [record(1, 10, peak_memory_gib=3.0), *(record(step, 100 * step) for step in (2, 3, 4))]
    records[-1] |= {"compiled_graphs": 2, "mfu": 0.5, "loss": 3.5}
    row = modes.summarize("layer", records, LOG, warmup=1)
    assert (row.tokens_per_second, row.ms, row.peak_memory_gib) == (300, 1e6 / 300, 3.0)
    assert (row.first_step_seconds, row.compiled_graphs, row.mfu, row.last_loss) == (12.25, 2, 0.5, 3.5)


def test_the_table_relates_every_mode_to_the_first(modes):
    slow = modes.summarize("eager", [record(1, 200), record(2, 200)], LOG, warmup=1)
    fast = modes.summarize("layer", [record(1, 200), record(2, 300, compiled_graphs=2)], LOG, warmup=1)
    head, first, second = modes.format_table([slow, fast]).splitlines()
    assert head.split()[:4] == ["mode", "tokens/s", "x", "eager"]
    assert first.split()[:3] == ["eager", "200", "1.00"]
    assert second.split()[:3] == ["layer", "300", "1.50"]
    assert [line.split()[-2] for line in (first, second)] == ["-", "2"]


def test_a_warm_up_that_leaves_no_step_is_refused(modes, capsys):
    with pytest.raises(SystemExit) as caught:
        modes.main([TINY, "--steps", "3", "--warmup", "3"])
    assert caught.value.code == 2
    assert "leaves nothing" in capsys.readouterr().err


def test_a_mode_that_fails_shows_why(modes, capsys):
    assert modes.main(["llama3_debugmodel", "--training.seq_lem", "16"]) == 1
    assert "seq_len" in capsys.readouterr().err


@pytest.mark.long
def test_eager_and_layer_are_measured_and_saved_with_all_that_is_needed_to_repeat_it(modes, capsys, tmp_path):
    words = [TINY, "--modes", "eager", "layer", "--steps", "3", "--warmup", "1", "--save", "--results", str(tmp_path)]
    assert modes.main([*words, "--compile.backend", "eager"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[1:3]] == ["eager", "layer"]
    (path,) = tmp_path.glob("*-modes-tiny.json")
    saved = json.loads(path.read_text())
    assert saved["command"].startswith(f"python benchmarks/modes.py {TINY} --modes eager layer --steps 3")
    assert saved["machine"]["cores"] and saved["versions"]["torch"] and saved["date"]
    eager, layer = saved["rows"]
    assert (eager["compiled_graphs"], layer["compiled_graphs"]) == (None, 2)
    assert eager["last_loss"] == layer["last_loss"]
    for row in (eager, layer):
        assert row["tokens_per_second"] > 0 and row["first_step_seconds"] > 0 and row["peak_memory_gib"] > 0


def test_what_takes_longer_than_allowed_is_named(modes):
    base = modes.summarize("eager", [record(1, 200), record(2, 200)], LOG, warmup=1)
    late = modes.summarize("exact", [record(1, 200), record(2, 180)], LOG.replace("12.25", "25.00"), warmup=1)
    assert modes.find_excess([base, late], 2.1, 1.2) == []
    first, step = modes.find_excess([base, late], 2.0, 1.05)
    assert first.startswith("exact: the first step comes after 2.04x") and step.startswith("exact: a step takes 1.11x")
