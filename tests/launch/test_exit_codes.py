"""Exit codes of launchers and agents: 75 only for ranks that have saved, else the code of what failed first."""

import os
import signal
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException

from monograph.launch import agent, local, stop_signals
from monograph.launch.stop_signals import EndedAtOnce
from monograph.train.signals import StoppedOnRequest
from tests.kit.runs import change
from tests.kit.tiny import tiny

HOUR = 3600


def note(logs, run_id, text, *, attempt=0):
    """Leave what torch lets a rank note when it fails."""
    path = Path(logs) / f"{run_id}_x" / f"attempt_{attempt}" / "1" / "error.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def ask_once(config):
    raise SignalException("SIGTERM was received", sigval=signal.SIGUSR1)


def ask_after_a_failed_save(config):
    note(config.logs_specs.root_log_dir, config.run_id, "No space left on device")
    ask_once(config)


def ask_twice(config):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except SignalException:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Run an agent or a launcher in which a function stands for torch's; returns the exit code."""
    monkeypatch.setattr(stop_signals, "SAME_REQUEST_SECONDS", 0.0)

    def run(which, stand_in):
        for module in (agent, local):
            monkeypatch.setattr(module, "elastic_launch", lambda config, _: lambda *_: stand_in(config))
        if which == "agent":
            words = ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-id", "job", "--log-dir", str(tmp_path / "logs")]
            return agent.main([*words, "x.py"])
        config = tiny("llama3", tmp_path)
        change(config, "job.dump_folder", str(tmp_path))
        try:
            return local.launch(["verify"], 2, config)
        except (StoppedOnRequest, EndedAtOnce) as error:
            return error.exit_code

    return run


@pytest.fixture(params=[-HOUR, 0, HOUR], ids=["clock behind", "same clock", "clock ahead"])
def clock(request, monkeypatch):
    """The clock of this machine against that of the disk."""
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + request.param)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + request.param * 10**9)


@pytest.mark.parametrize("which", ["agent", "local"])
def test_a_failed_save_is_no_stop_whatever_the_clock_of_the_disk(which, launched, clock):
    assert launched(which, ask_after_a_failed_save) == 1


@pytest.mark.parametrize("which", ["agent", "local"])
def test_notes_of_an_earlier_start_are_no_failure_whatever_the_clock_of_the_disk(which, launched, clock, tmp_path):
    note(tmp_path / "logs", "job", "No space left on device")
    time.sleep(0.02)  # the clock of a disk moves every few milliseconds
    assert launched(which, ask_once) == 75


@pytest.mark.parametrize("which", ["agent", "local"])
def test_ranks_that_are_asked_twice_end_as_a_shell_says_it_and_not_as_saved(which, launched):
    assert launched(which, ask_twice) == 128 + signal.SIGTERM
