"""Exit codes of launchers and agents: 75 only for ranks that have saved, else the code of what failed first."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException

from monograph.compat import elastic
from monograph.launch import agent, local, stop_signals
from monograph.launch.stop_signals import EndedAtOnce
from monograph.train.signals import StoppedOnRequest
from tests.kit.runs import change
from tests.kit.tiny import tiny

HOUR = 3600
RANK = """
import os, pathlib, sys, time
if os.environ["RANK"] == "0":
    time.sleep(60)
if sys.argv[1] == "1":
    pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text('{"message": "planted"}')
sys.exit(3)
"""
DEAF_RANK = """
import os, pathlib, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
for _ in range(2):
    time.sleep(0.5)
    os.kill(os.getppid(), signal.SIGTERM)
time.sleep(40)
pathlib.Path(sys.argv[1]).touch()
"""


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


@pytest.mark.faults  # two signals half a second apart, which a loaded machine may deliver otherwise
def test_a_rank_that_obeys_no_signal_is_killed_soon_after_the_second_request(tmp_path, monkeypatch):
    """As one that hangs in C code; the launcher's own limit for a save is longer than an hour."""
    monkeypatch.setattr(stop_signals, "SAME_REQUEST_SECONDS", 0.0)
    monkeypatch.setattr(elastic, "SECONDS_ONCE_ASKED_AGAIN", 0.5)
    (tmp_path / "rank.py").write_text(DEAF_RANK)
    words = ["--nnodes", "1", "--rdzv-backend", "c10d", "--log-dir", str(tmp_path / "logs"), "--no-python"]
    assert agent.main([*words, sys.executable, str(tmp_path / "rank.py"), str(tmp_path / "survived")]) == 143
    assert not (tmp_path / "survived").exists()


@pytest.mark.parametrize("noted", [False, True], ids=["without a note", "with a note"])
def test_a_rank_that_the_agent_terminated_is_not_named_as_the_first_to_fail(noted, tmp_path, capfd):
    """Ranks of two processes without torch: rank 1 fails, and rank 0 is terminated because of that."""
    (tmp_path / "rank.py").write_text(RANK)
    words = ["--nnodes", "1", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--log-dir", str(tmp_path / "logs")]
    assert agent.main([*words, "--no-python", sys.executable, str(tmp_path / "rank.py"), str(int(noted))]) == 3
    assert "rank 1 failed first: it ended with exit code 3" in capfd.readouterr().err
