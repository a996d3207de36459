"""A rank whose launcher is gone ends, also when it was gone before the rank could look; a request is never lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monograph.launch.follow import LAUNCHER_VARIABLE

ROOT = Path(__file__).parents[2]
FOLLOW = "from monograph.launch.follow import follow_launcher; follow_launcher(); print('lives on')"
IMPORT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from monograph.cli import run_command
from monograph.commands.table import Command
sys.exit(run_command(Command("x", "", "", function="tests.launch.interrupted_import:work"), []))
"""


def run(code, **variables):
    plain = {
        name: value for name, value in os.environ.items() if name not in (LAUNCHER_VARIABLE, "TORCHELASTIC_RUN_ID")
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=plain | variables, cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_a_rank_that_is_born_after_its_launcher_died_ends_at_once():
    launcher = subprocess.Popen([sys.executable, "-c", ""])
    launcher.wait()
    done = run(FOLLOW, **{LAUNCHER_VARIABLE: str(launcher.pid)})
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")


def test_a_rank_whose_launcher_lives_goes_on():
    assert run(FOLLOW, **{LAUNCHER_VARIABLE: str(os.getpid())}).stdout == "lives on\n"


def test_a_rank_behind_a_wrapper_goes_on_while_its_launcher_lives():
    """A profiler, a shell or a container may stand between a launcher and its rank."""
    wrapper = f"import subprocess, sys; print(subprocess.run([sys.executable, '-c', {FOLLOW!r}]).returncode)"
    assert run(wrapper, **{LAUNCHER_VARIABLE: str(os.getpid())}).stdout == "lives on\n0\n"


@pytest.mark.parametrize(("ignored", "variables"), [(True, {LAUNCHER_VARIABLE: "here"}), (False, {})])
def test_a_rank_that_was_started_by_hand_or_with_nohup_does_not_follow(ignored, variables):
    choice = "SIG_IGN" if ignored else "SIG_DFL"
    code = f"import signal; signal.signal(signal.SIGHUP, signal.{choice}); before = signal.getsignal(signal.SIGHUP); "
    code += "from monograph.launch.follow import follow_launcher; follow_launcher(); "
    code += "print(signal.getsignal(signal.SIGHUP) == before)"
    given = {name: str(os.getpid()) for name in variables}
    assert run(code, **given).stdout == "True\n"


@pytest.mark.parametrize("choice", ["SIG_DFL", "SIG_IGN"])
def test_ranks_end_when_their_launcher_is_killed_while_they_start(tmp_path, choice):
    """Also under nohup. Between the start of a process and its first look, nobody tells it that its parent has died."""
    rank = tmp_path / "rank.py"
    rank.write_text(f"import time; time.sleep(0.3); {FOLLOW}; print(end='', flush=True); time.sleep(60)")
    launcher = f"""
import os, signal, subprocess, sys
signal.signal(signal.SIGHUP, signal.{choice})
os.environ[{LAUNCHER_VARIABLE!r}] = str(os.getpid())
ranks = [subprocess.Popen([sys.executable, {str(rank)!r}], start_new_session=True) for _ in range(2)]
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run(launcher, PYTHONPATH=str(ROOT))  # returns when the ranks have closed its output, too
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_ctrl_c_inside_of_an_import_ends_the_command_without_a_word():
    done = run(IMPORT)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
