"""The time-to-first-step table."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from monograph.train import startup as measured
from monograph.train.startup import Startup, early_phase, seconds_since_process_start

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """As in a process that has not run a command."""
    monkeypatch.setattr(measured, "_EARLY", {})


def test_phases_are_timed_in_order_and_a_name_used_twice_adds_up():
    startup = Startup()
    for name, seconds in (("data", 0.02), ("model", 0.01), ("data", 0.03)):
        with startup.phase(name):
            time.sleep(seconds)
    assert list(startup.seconds) == ["import", "data", "model"]
    assert 0.05 <= startup.seconds["data"] < 1.0
    assert 0.01 <= startup.seconds["model"] < 1.0


def test_a_phase_that_fails_is_timed_too():
    startup = Startup()
    with pytest.raises(ValueError, match="broken"), startup.phase("model"):
        time.sleep(0.01)
        raise ValueError("broken")
    assert startup.seconds["model"] >= 0.01


def test_the_table_ends_with_the_sum_of_its_rows():
    startup = Startup()
    startup.seconds = {"import": 1.25, "first step": 0.5}
    assert startup.lines() == [
        "time to the first step",
        "  import         1.25 s",
        "  first step     0.50 s",
        "  total          1.75 s",
    ]


def test_what_the_command_line_did_first_is_a_row_of_its_own_and_not_counted_twice():
    with early_phase("config"):
        time.sleep(0.05)
    age, startup = seconds_since_process_start(), Startup()
    assert list(startup.seconds) == ["import", "config"]
    assert 0.05 <= startup.seconds["config"] < 1.0
    assert sum(startup.seconds.values()) == pytest.approx(age, abs=0.05)


def test_a_run_that_no_command_started_does_not_count_what_its_process_did_since_the_import():
    first = Startup().seconds["import"]
    time.sleep(0.02)
    assert 0 < Startup().seconds["import"] == first < seconds_since_process_start()


def test_the_age_of_the_process_grows_with_the_clock():
    before, start = seconds_since_process_start(), time.perf_counter()
    time.sleep(0.05)
    after, end = seconds_since_process_start(), time.perf_counter()
    assert before > 0.1, "this process has imported torch and pytest"
    assert after - before == pytest.approx(end - start, abs=0.02)


def test_torchs_compiler_is_not_imported_for_a_step_of_ours_and_the_single_pass_optimizer(tmp_path):
    """It takes a second, and torch imports it for less: to fill a tensor on the meta device, to make an optimizer."""
    code = """
import sys
from pathlib import Path
import torch
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.run import build_step
from monograph.train.update import apply_update
from tests.kit.tiny import tiny

config = tiny("deepseek_v3", Path(sys.argv[1]), {"optimizer.implementation": "single_pass"}, fsdp="graph")
with joined_groups(Mesh(), torch.device("cpu")) as groups:
    step = build_step(config, groups)
    optimizer = config.optimizer.build(parameters=step.parameters, weight_cache=step.weight_cache)
    shape = (config.training.local_batch_size, config.training.seq_len)
    batch = {name: torch.zeros(shape, dtype=torch.int64) for name in step.model.batch_spec}
    loss = step(batch, {name: torch.ones((), dtype=torch.int64) for name in step.model.normalizers})
    apply_update(step, optimizer, loss=loss, lr=0.1, max_norm=1.0)
sys.exit("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
