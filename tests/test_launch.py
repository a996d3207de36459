"""Whole programs on several ranks: they start, keep logs, fail with the reason in sight, stop on request, resume."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from monograph.launch.local import find_first_failure
from tests.kit.paced import find_processes, wait_until
from tests.kit.runs import differing, find_steps, read_exact, read_records, read_step

ROOT = Path(__file__).parent.parent
STEPS = 16
LONG = ("--training.steps", "100000", "--model.pause_seconds", "0.05")


def command(folder, *words, what="train"):
    fixed = ("--training.steps", str(STEPS), "--checkpoint.interval", "4", "--debug.log_level", "info")
    given = [word for word in words if word.startswith("--")]
    kept = [each for pair in zip(fixed[::2], fixed[1::2], strict=True) if pair[0] not in given for each in pair]
    return [what, "tests.kit.paced:paced", "--job.dump_folder", str(folder), *kept, *words]


def environment():
    keep = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return keep | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def start(folder, *words, before=("-m", "monograph"), what="train"):
    return subprocess.Popen(
        [sys.executable, *before, *command(folder, *words, what=what)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=folder.parent,
    )


def finish(process, seconds=120):
    """(exit code, stdout, stderr); a process that does not end is killed with all its ranks."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def wait_for_steps(folder, count, process):
    def is_there():
        assert process.poll() is None, process.communicate()[1]
        return (folder / "metrics.jsonl").exists() and len(read_records(folder)) >= count

    wait_until(is_there, 120, f"{count} steps")


def pid_of(rank, folder):
    return next(pid for pid, found in find_processes(str(folder)).items() if found == str(rank))


def catches(number, pid):
    """Whether a process has a handler for a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (number - 1) & 1)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run of two ranks from beginning to end."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    code, out, err = finish(start(folder, "--ranks", "2"))
    assert code == 0, err
    return folder, out, err


def test_ranks_train_together_and_the_logs_of_each_are_kept(unbroken):
    folder, out, err = unbroken
    assert [record["step"] for record in read_exact(folder)] == list(range(1, STEPS + 1))
    logs = {path.relative_to(folder / "logs").as_posix() for path in (folder / "logs").rglob("*.log")}
    assert logs >= {"rank-0.log", "rank-1.log"}
    assert any(name.endswith("attempt_0/1/stderr.log") for name in logs)
    assert "2 x cpu (dp_shard 2)" in (folder / "logs" / "rank-1.log").read_text()
    assert (out + err).count("2 x cpu (dp_shard 2)") == 1, "rank 0 alone speaks on the terminal"
    assert find_processes(str(folder)) == {}


@pytest.mark.long
def test_the_traceback_of_the_rank_that_failed_is_what_the_user_sees(tmp_path):
    folder = tmp_path / "run"
    code, _, err = finish(start(folder, "--ranks", "2", "--model.fail_on_rank", "1"))
    assert code == 1
    shown = err[err.index("rank 1 ended with exit code 1; it failed first") :]
    assert "Traceback (most recent call last)" in shown and "in forward" in shown
    assert shown.count("[rank1]: ArithmeticError: planted on rank 1") == 1
    assert "torch/distributed/elastic" not in err, "torch's launcher says the same in lines of its own"
    assert shown.strip().endswith(f"the logs of all ranks are in {folder / 'logs'}")
    wait_until(lambda: not find_processes(str(folder)), 5, "all processes are gone")


@pytest.mark.long
def test_a_rank_that_crashes_is_named_with_its_signal_and_the_stacks_of_its_threads(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--ranks", "2", what="verify")
    wait_until(lambda: "1" in find_processes(str(folder)).values(), 60, "rank 1 is there")
    wait_until(lambda: catches(signal.SIGABRT, pid_of(1, folder)), 60, "Python has started in it")
    os.kill(pid_of(1, folder), signal.SIGABRT)
    code, _, err = finish(process, 60)
    assert code == 128 + signal.SIGABRT
    shown = err[err.index("rank 1 was killed by SIGABRT (exit code -6); it failed first") :]
    assert "Fatal Python error: Aborted" in shown and "(most recent call first):" in shown
    (log,) = (folder / "logs").glob("*/attempt_0/1/stderr.log")
    assert "Fatal Python error: Aborted" in log.read_text(), "and they stay in its log"


@dataclass
class Failure:
    """What torch's launcher knows about a rank that ended."""

    exitcode: int
    error_file: str
    timestamp: int = 0
    pid: int = 0


@pytest.mark.parametrize(
    ("codes", "noted", "ago", "ended", "first"),
    [
        ({0: 1, 1: 1}, [1, 0], 0, [], 1),
        ({0: 1, 1: 1}, [0, 1], 0, [], 0),
        ({0: 1, 1: -9}, [0], 0, [], 1),
        ({0: 1, 1: -11, 2: 1}, [2, 0], 0, [], 1),
        ({0: -15, 1: 2}, [], 0, [], 1),
        ({0: -15, 1: 1, 2: -15}, [1], 0, [], 1),
        ({0: 1, 1: -15, 2: -15}, [0], 0, [1, 0], 1),
        ({0: -9, 1: 1, 2: -9}, [1], 60, [], 1),
        ({0: 75, 1: 75}, [0, 1], 0, [], 0),
    ],
    ids=[
        "the earlier note",
        "the earlier note of rank 0",
        "a killed rank explains the others' notes",
        "a crashed rank too",
        "those told to end are no reason",
        "nor beside a note",
        "unless somebody else told them",
        "nor when they had to be killed",
        "asked to stop",
    ],
)
@pytest.mark.parametrize("skew", [0, -600, 600], ids=["same clock", "disk behind", "disk ahead"])
def test_the_rank_that_failed_first_is_found_among_those_that_followed(codes, noted, ago, ended, first, skew, tmp_path):
    for place, rank in enumerate(noted):
        (tmp_path / f"{rank}.json").write_text("{}")
        at = time.time() + skew - ago + 0.001 * place
        os.utime(tmp_path / f"{rank}.json", (at, at))
    failures = {
        rank: Failure(code, str(tmp_path / f"{rank}.json"), int(time.time() - ago), pid=1000 + rank)
        for rank, code in codes.items()
    }
    assert find_first_failure(failures, {1000 + rank for rank in ended}) == first


def test_of_two_killed_ranks_the_one_that_was_killed_earlier_failed_first():
    """The other one hung in a collective until the launcher killed it."""
    assert find_first_failure({0: Failure(-9, "none", 130), 1: Failure(-9, "none", 100)}, set()) == 1


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """The same run, one rank of which was killed half way through: the seconds until all had ended, what is left."""
    folder = tmp_path_factory.mktemp("broken") / "run"
    process = start(folder, "--ranks", "2", "--model.pause_seconds", "0.05")
    wait_for_steps(folder, 6, process)
    os.kill(pid_of(1, folder), signal.SIGKILL)
    killed = time.monotonic()
    code, _, err = finish(process, 30)
    return folder, code, err, time.monotonic() - killed, find_steps(folder)


@pytest.mark.long
def test_ranks_survive_no_peer(broken):
    folder, code, err, seconds, saved = broken
    assert seconds < 20, "survivors end by themselves: the launcher would kill them after 30 s"
    assert code == 128 + signal.SIGKILL
    assert "rank 1 was killed by SIGKILL (exit code -9); it failed first" in err
    wait_until(lambda: not find_processes(str(folder)), 5, "all processes are gone")
    assert saved[-1] < STEPS


@pytest.mark.long
def test_a_launcher_asked_to_stop_leaves_one_checkpoint_of_all_ranks(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--ranks", "2", *LONG, "--checkpoint.interval", "0")
    wait_for_steps(folder, 3, process)
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    code, _, err = finish(process, 60)
    assert code == 75, err
    assert time.monotonic() - asked < 30
    (step,) = find_steps(folder)
    assert step == read_records(folder)[-1]["step"], "what was saved is the step that was finished last"
    assert f"stopped after step {step}, with a checkpoint" in err
    assert find_processes(str(folder)) == {}


@pytest.mark.long
def test_ranks_end_when_their_launcher_dies_without_a_word(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, "--ranks", "2", *LONG)
    wait_for_steps(folder, 2, process)
    process.kill()
    process.communicate()
    wait_until(lambda: not find_processes(str(folder)), 10, "all ranks are gone")
    assert find_steps(folder), "and they saved on the way out"


@pytest.mark.long
def test_a_launcher_that_dies_twice_asks_its_ranks_to_stop_once(tmp_path):
    """The kernel sends a signal for each of its threads, and Python may start on the second inside of the first."""
    script = """
import os, signal
os.environ["TORCHELASTIC_RUN_ID"] = "run"
from monograph.launch.follow import follow_launcher
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append("stop"))
follow_launcher()
handler = signal.getsignal(signal.SIGHUP)
for _ in range(3):
    handler(signal.SIGHUP, None)
os.kill(os.getpid(), signal.SIGHUP)
assert asked == ["stop"], asked
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=environment(), cwd=tmp_path)


@pytest.mark.long
def test_torchrun_joins_and_continues_a_broken_run_to_the_bit(unbroken, broken):
    folder, *_ = broken
    runner = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "monograph")
    code, _, err = finish(start(folder, "--checkpoint.load", "latest", before=runner))
    assert code == 0, err
    assert read_exact(folder) == read_exact(unbroken[0])
    assert differing(read_step(folder, STEPS), read_step(unbroken[0], STEPS)) == []
    assert {path.name for path in (folder / "logs").glob("rank-*.log")} == {"rank-0.log", "rank-1.log"}


@pytest.mark.long
def test_torchrun_starts_a_run_and_a_relaunch_of_a_killed_one_continues_to_the_bit(unbroken, tmp_path):
    folder = tmp_path / "run"
    runner = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "monograph")
    process = start(folder, "--model.pause_seconds", "0.05", before=runner)
    wait_for_steps(folder, 6, process)
    os.kill(pid_of(1, folder), signal.SIGKILL)
    assert finish(process, 60)[0] != 0
    assert find_steps(folder)[-1] < STEPS
    code, _, err = finish(start(folder, "--ranks", "2", "--checkpoint.load", "latest"))
    assert code == 0, err
    assert read_exact(folder) == read_exact(unbroken[0])
    assert differing(read_step(folder, STEPS), read_step(unbroken[0], STEPS)) == []
