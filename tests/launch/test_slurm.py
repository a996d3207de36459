"""A SLURM job with stand-ins for its commands: two agents of this host, stopped at the time limit and requeued."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.paced import find_processes, paced, wait_until
from tests.kit.ranks import pool
from tests.kit.runs import differing, find_steps, read_exact, read_records, read_step
from tests.parallel.rank_work import run_trainer
from tests.test_launch import environment

STUBS = Path(__file__).parent / "stubs"
FLAGS = {
    "training.steps": 30,
    "training.global_batch_size": 4,
    "checkpoint.interval": 10,
    "compile.mode": "eager",
    "debug.device": "cpu",
}


def find_port():
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return taken.getsockname()[1]


def submit(folder, state, *, pause=0.0, flags=FLAGS):
    """`monograph launch --submit` with the stand-ins on the PATH, in a process of its own."""
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = ["launch", "tests.kit.paced:paced", "--on", "slurm", "--nodes", "2", "--gpus-per-node", "1", "--submit"]
    command += ["--python", sys.executable, "--port", str(find_port()), "--job.dump_folder", str(folder)]
    command += ["--model.pause_seconds", str(pause), *words]
    path = f"{STUBS}:{os.environ['PATH']}"
    return subprocess.Popen(
        [sys.executable, "-m", "monograph", *command], env=environment() | {"PATH": path, "STUB_FOLDER": str(state)}
    )


@pytest.mark.long
def test_a_job_that_reaches_its_time_limit_saves_is_requeued_and_ends_with_the_same_bits(tmp_path):
    folder, state = tmp_path / "run", tmp_path / "state"
    state.mkdir()
    job = submit(folder, state, pause=0.1)
    metrics = folder / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and len(read_records(folder)) >= 4, 120, "four steps")
    os.kill(int((state / "srun.pid").read_text()), signal.SIGTERM)
    assert job.wait(timeout=180) == 0, (state / "job.out").read_text()
    assert (state / "codes").read_text().split() == ["75", "0"]
    assert find_processes(str(folder)) == {}
    stopped = find_steps(folder)[0]
    assert 4 <= stopped < 30
    config = paced()
    for name, value in {**FLAGS, "job.dump_folder": str(tmp_path / "unbroken" / "run")}.items():
        section, field = name.split(".")
        setattr(getattr(config, section), field, value)
    pool.run(2, run_trainer, config)
    assert read_exact(folder) == read_exact(tmp_path / "unbroken" / "run")
    assert differing(read_step(folder, 30), read_step(tmp_path / "unbroken" / "run", 30)) == []
