"""Two agents under random faults for thousands of steps: the job ends by itself, with the bits of a clean run.

`FAULT_STEPS` (3,000) and `FAULT_SEED` (0) choose another run. Faults keep the mesh: ranks and nodes are killed or
stopped, and the disk is full for a while; every node comes back.
"""

import os
import random
import signal
import time

import pytest

from monograph.train.goodput import summarize
from tests.kit.paced import paced
from tests.kit.ranks import pool
from tests.kit.runs import change, differing, read_exact, read_step
from tests.launch.agents import FLAGS, Agents
from tests.parallel.rank_work import run_trainer

pytestmark = pytest.mark.faults
STEPS = int(os.environ.get("FAULT_STEPS", "3000"))
SEED = int(os.environ.get("FAULT_SEED", "0"))
FAULTS = max(3, STEPS // 150)
KINDS = ("kill a rank", "stop a rank", "lose a node", "pause a rank", "refuse writes")
SETTINGS = {"training.steps": STEPS, "checkpoint.interval": 25, "parallelism.timeout_seconds": 5, "model.n_layers": 1}


def strike(job, kind, draw):
    """One fault; what it does to disks is taken back after a while."""
    name = draw.choice(("a", "b"))
    ranks = list(job.find_ranks(name).values())
    if kind == "lose a node":
        job.lose(name)
        time.sleep(draw.uniform(0, 3))
        if name == "a":  # which keeps the rendezvous store: the other agent ends, and a scheduler starts both again
            job.agents["b"].wait(timeout=300)
            job.start("b", 1)
        job.start(name, 1)
    elif kind == "refuse writes":
        job.full_disk.touch()
        time.sleep(draw.uniform(0.5, 3))
        job.full_disk.unlink()
    elif ranks:
        pid = draw.choice(ranks)
        os.kill(pid, signal.SIGKILL if kind == "kill a rank" else signal.SIGSTOP)
        if kind == "pause a rank":
            time.sleep(draw.uniform(0.1, 2))
            os.kill(pid, signal.SIGCONT)


def test_random_faults_change_no_bit(tmp_path):
    config = paced()
    clean = tmp_path / "clean" / "run"
    for path, value in {**FLAGS, **SETTINGS, "job.dump_folder": str(clean)}.items():
        change(config, path, value)
    pool.run(2, run_trainer, config, timeout_seconds=3600)
    draw = random.Random(SEED)
    job = Agents(tmp_path / "job" / "run", max_restarts=10_000, flags=SETTINGS)
    job.start("a", 1)
    job.start("b", 1)
    try:
        struck = []
        for at in sorted(draw.sample(range(5, STEPS - 30), FAULTS)):
            job.wait_for_step(min(at, STEPS - 1), seconds=1200)
            if job.find_last_step() >= STEPS - 5:
                break
            struck.append(draw.choice(KINDS))
            try:
                strike(job, struck[-1], draw)
            except (ProcessLookupError, FileNotFoundError):
                continue
        assert job.finish(seconds=3600) == {"a": 0, "b": 0}, job.read_output()[-5000:]
    finally:
        job.close()
    assert len(struck) >= 3
    assert read_exact(job.folder) == read_exact(clean)
    assert differing(read_step(job.folder, STEPS), read_step(clean, STEPS)) == []
    found = summarize(job.folder)
    print(f"\nseed {SEED}: {len(struck)} faults {struck}; {found.describe()}; {found.lost_steps} steps done again")
