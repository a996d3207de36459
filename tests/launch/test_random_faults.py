"""Agents under random faults for thousands of steps: the job ends by itself, with the bits of a clean run.

`FAULT_STEPS` (3,000) and `FAULT_SEED` (0) choose another run. Every kind of fault happens equally often: ranks are
killed, also inside of a save; stopped for good or for a while; a disk refuses a call of a save; a node is lost. Agents
that end with an error are started again, as a scheduler does. In the elastic run a lost node stays away for a while and
comes back with another number of ranks: the mesh changes, samples and losses do not.
"""

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress

import pytest

from monograph.train.goodput import summarize
from tests.kit.paced import paced, wait_until
from tests.kit.ranks import pool
from tests.kit.runs import change, differing, read_exact, read_step
from tests.launch.agents import FLAGS, Agents
from tests.launch.disk_faults import ERRORS, FIRST_RANK_CALLS, KILL, OTHER_RANK_CALLS, plan_fault
from tests.parallel.rank_work import run_trainer

pytestmark = pytest.mark.faults
STEPS = int(os.environ.get("FAULT_STEPS", "3000"))
SEED = int(os.environ.get("FAULT_SEED", "0"))
STEPS_PER_FAULT, LAST_STEPS = 100, 30
KINDS = ("kill a rank", "kill a rank in a save", "stop a rank", "pause a rank", "fail a save", "lose a node")
SETTINGS = {
    "training.steps": STEPS,
    "checkpoint.interval": 25,
    "checkpoint.timeout_seconds": 20,
    "parallelism.timeout_seconds": 10,
    "model.n_layers": 1,
}
TOLERANCE = 1e-5
"""Of the loss of a step, relative to the clean run's, where the mesh changed on the way."""


class FaultyJob:
    """A job, and faults that are drawn for it."""

    def __init__(self, folder, *, seed, elastic, flags):
        self.draw, self.is_elastic = random.Random(seed), elastic
        ends_soon = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "20"}
        nnodes = "1:2" if elastic else "2"
        self.job = Agents(folder, nnodes=nnodes, max_restarts=10_000, flags=flags, variables=ends_soon)
        self.struck = []

    def run(self):
        """Start both nodes, strike at random steps, and wait for the end."""
        for name in ("a", "b"):
            self.job.start(name, 1)
        count = max(len(KINDS), STEPS // STEPS_PER_FAULT)
        kinds = [KINDS[number % len(KINDS)] for number in range(count)]
        self.draw.shuffle(kinds)
        for at, kind in zip(sorted(self.draw.sample(range(5, STEPS - LAST_STEPS), count)), kinds, strict=True):
            self.wait_for_step(at)
            begin = time.monotonic()
            self.strike(kind)
            self.struck.append(kind)
            print(f"step {at}: {kind}, {time.monotonic() - begin:.1f} s", flush=True)
        self.wait_for_step(STEPS)
        assert self.job.finish(seconds=300) == {"a": 0, "b": 0}, self.job.read_output()[-5000:]

    def wait_for_step(self, step):
        """Wait until a step is done; agents that failed are started again meanwhile."""

        def is_there():
            self.job.revive()
            return self.job.find_last_step() >= step

        wait_until(is_there, 1200, f"step {step}")

    def strike(self, kind):
        """One fault; returns when it has happened."""
        if kind == "lose a node":
            return self.lose_node()
        if kind in ("fail a save", "kill a rank in a save"):
            return self.break_save(KILL if kind == "kill a rank in a save" else self.draw.choice(ERRORS))
        name = self.draw.choice(("a", "b"))
        wait_until(lambda: self.job.revive() or self.job.find_ranks(name), 300, f"ranks on {name}")
        with suppress(ProcessLookupError, IndexError):
            pid = self.draw.choice(list(self.job.find_ranks(name).values()))
            os.kill(pid, signal.SIGKILL if kind == "kill a rank" else signal.SIGSTOP)
            if kind == "pause a rank":
                time.sleep(self.draw.uniform(0.1, 2))
                os.kill(pid, signal.SIGCONT)
        return None

    def break_save(self, what):
        """A call of a save fails, on the first rank or on the second, or ends its process."""
        rank = 0 if self.is_elastic else self.draw.choice((0, 1))
        call = self.draw.choice(OTHER_RANK_CALLS if rank else FIRST_RANK_CALLS)
        plan_fault(self.job.disk_fault, rank=rank, call=call, what=what)
        wait_until(lambda: self.job.revive() or not self.job.disk_fault.exists(), 300, f"{call} on rank {rank}")

    def lose_node(self):
        """A node without its agent and ranks; the one with the rendezvous store takes the other agent with it."""
        name = "b" if self.is_elastic else self.draw.choice(("a", "b"))
        self.job.lose(name)
        if self.is_elastic:
            self.wait_for_step(self.job.find_last_step() + self.draw.randint(1, 20))
            self.job.start(name, 3 - self.job.sizes[name])
        else:
            time.sleep(self.draw.uniform(0, 3))
            self.job.start(name, 1)

    def describe(self):
        found = summarize(self.job.folder)
        counts = ", ".join(f"{kind} {count}" for kind, count in sorted(Counter(self.struck).items()))
        return (
            f"FAULT_SEED {SEED}, {STEPS} steps, {len(self.struck)} faults ({counts}); agents started again "
            f"{self.job.revived} times; {found.describe()}; {found.lost_steps} steps done again"
        )


def train_clean(folder, flags):
    """The same run on two ranks that nothing happens to."""
    config = paced()
    for path, value in {**FLAGS, **flags, "job.dump_folder": str(folder)}.items():
        change(config, path, value)
    pool.run(2, run_trainer, config, timeout_seconds=3600)


def test_random_faults_change_no_bit(tmp_path):
    flags = {**SETTINGS, "training.global_batch_size": 4}
    clean = tmp_path / "clean" / "run"
    train_clean(clean, flags)
    faulty = FaultyJob(tmp_path / "job" / "run", seed=SEED, elastic=False, flags=flags)
    try:
        faulty.run()
    finally:
        faulty.job.close()
    print(faulty.describe())
    assert set(faulty.struck) == set(KINDS)
    assert read_exact(faulty.job.folder) == read_exact(clean)
    assert differing(read_step(faulty.job.folder, STEPS), read_step(clean, STEPS)) == []


def test_random_faults_that_change_the_mesh_show_every_sample_once(tmp_path):
    flags = {**SETTINGS, "training.global_batch_size": 6}
    clean = tmp_path / "clean" / "run"
    train_clean(clean, flags)
    faulty = FaultyJob(tmp_path / "job" / "run", seed=SEED + 1, elastic=True, flags=flags)
    try:
        faulty.run()
    finally:
        faulty.job.close()
    journal = faulty.job.read_journal()
    worlds = Counter(world for world, _ in journal.values())
    mine, other = read_exact(faulty.job.folder), read_exact(clean)
    errors = [abs(one["loss"] - two["loss"]) / two["loss"] for one, two in zip(mine, other, strict=True)]
    print(faulty.describe())
    print(
        f"steps by ranks {dict(worlds)}; loss differs by at most {max(errors):.1e}, in the last step {errors[-1]:.1e}"
    )
    assert [sample for _, samples in journal.values() for sample in samples] == list(range(6 * STEPS))
    assert list(journal) == list(range(1, STEPS + 1))
    assert set(worlds) == {1, 2, 3}
    assert [each["cursor"] for each in mine] == [each["cursor"] for each in other]
    assert max(errors) < TOLERANCE
