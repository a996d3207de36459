"""Two real agents on this host: ranks and nodes are killed, stopped, slow, lost and come back; the job goes on."""

import os
import re
import signal
import threading
import time

import pytest

from monograph.train.goodput import summarize
from tests.kit.paced import paced
from tests.kit.ranks import pool
from tests.kit.runs import change, differing, find_steps, read_exact, read_records, read_step
from tests.launch.agents import FLAGS, Agents
from tests.parallel.rank_work import run_trainer

pytestmark = pytest.mark.faults
STEPS = 40
INTERVAL = FLAGS["checkpoint.interval"]


@pytest.fixture
def agents(tmp_path):
    made = []

    def make(**settings):
        flags = {"training.steps": STEPS, "model.pause_seconds": 0.05, **settings.pop("flags", {})}
        made.append(Agents(tmp_path / "job" / "run", flags=flags, **settings))
        return made[0]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The same run on two ranks that nothing happens to."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    config = paced()
    for path, value in {**FLAGS, "training.steps": STEPS, "job.dump_folder": str(folder)}.items():
        change(config, path, value)
    pool.run(2, run_trainer, config)
    return folder


def check_same_bits(folder, unbroken):
    assert read_exact(folder) == read_exact(unbroken)
    assert differing(read_step(folder, STEPS), read_step(unbroken, STEPS)) == []


def check_samples(job):
    """Every update is made of the samples that follow those of the one before, each once, whatever the ranks."""
    size = job.flags["training.global_batch_size"]
    journal = job.read_journal()
    assert list(journal) == list(range(1, STEPS + 1))
    for step, (_, samples) in journal.items():
        assert samples == list(range((step - 1) * size, step * size)), step
    return [world for world, _ in journal.values()]


def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint_and_no_bit(agents, unbroken):
    job = agents()
    for name in ("a", "b"):
        job.start(name, 1)
    job.wait_for_step(7)
    victim = job.find_ranks("b")
    os.kill(next(iter(victim.values())), signal.SIGKILL)
    assert job.finish() == {"a": 0, "b": 0}, job.read_output()
    check_same_bits(job.folder, unbroken)
    assert set(check_samples(job)) == {2}
    found = summarize(job.folder)
    assert found.starts == 2 and found.lost_steps <= INTERVAL and found.last_step == STEPS


def test_a_lost_node_that_comes_back_continues_the_job_to_the_bit(agents, unbroken):
    job = agents()
    for name in ("a", "b"):
        job.start(name, 1)
    job.wait_for_step(12)
    job.lose("b")
    time.sleep(2)
    job.start("b", 1)
    assert job.finish() == {"a": 0, "b": 0}, job.read_output()
    check_same_bits(job.folder, unbroken)
    assert summarize(job.folder).lost_steps <= INTERVAL
    check_samples(job)


def test_a_stopped_rank_is_found_by_the_timeout_named_and_replaced(agents, unbroken):
    job = agents(flags={"parallelism.timeout_seconds": 5})
    for name in ("a", "b"):
        job.start(name, 1)
    job.wait_for_step(7)
    ((rank, pid),) = job.find_ranks("b").items()
    os.kill(pid, signal.SIGSTOP)
    assert job.finish() == {"a": 0, "b": 0}, job.read_output()
    check_same_bits(job.folder, unbroken)
    assert summarize(job.folder).lost_steps <= INTERVAL
    assert rank in (0, 1)


def test_a_rank_that_is_paused_again_and_again_is_named_and_changes_no_bit(agents, unbroken):
    job = agents(flags={"metrics.rank_times_interval": 4, "metrics.slow_rank_limit": 1.5, "debug.log_level": "info"})
    for name in ("a", "b"):
        job.start(name, 1)
    job.wait_for_step(2)
    ((rank, pid),) = job.find_ranks("b").items()
    is_over = threading.Event()

    def slow_down():
        while not is_over.wait(0.1):
            try:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.3)
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                return

    slowing = threading.Thread(target=slow_down)
    slowing.start()
    job.wait_for_step(14)
    is_over.set()
    slowing.join()
    assert job.finish() == {"a": 0, "b": 0}, job.read_output()
    check_same_bits(job.folder, unbroken)
    slowest = [each["rank_ms"]["slowest_rank"] for each in read_records(job.folder) if "rank_ms" in each][:3]
    assert slowest.count(rank) >= 2, slowest
    log = (job.folder / "logs" / "rank-0.log").read_text()
    assert re.search(rf"slow ranks: rank {rank} \(", log), log


def test_an_elastic_job_goes_on_with_fewer_ranks_and_takes_back_a_smaller_node(agents, unbroken):
    job = agents(nnodes="1:2", flags={"model.pause_seconds": 0.4})
    job.start("a", 2)
    job.start("b", 2)
    job.wait_for_step(7)
    job.lose("b")
    lost_at = job.find_last_step()
    job.wait_for_step(lost_at + 2)
    job.start("b", 1)
    codes = job.finish()
    assert codes == {"a": 0, "b": 0}, job.read_output()
    worlds = check_samples(job)
    assert sorted(set(worlds), key=worlds.index) == [4, 2, 3], worlds
    found = summarize(job.folder)
    assert found.lost_steps <= INTERVAL, "a node that joins stops the others with a checkpoint"
    for mine, other in zip(read_exact(job.folder), read_exact(unbroken), strict=True):
        assert mine["cursor"] == other["cursor"] and mine["tokens"] == other["tokens"]
        assert mine["loss"] == pytest.approx(other["loss"], rel=1e-4), mine["step"]
    assert find_steps(job.folder)[-1] == STEPS
