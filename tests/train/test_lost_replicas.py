"""Replicas that are killed and come back while the others train on (torchft's quorum, over gloo).

Needs the extra `ft`, which `make setup` does not install.
"""

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from monograph.train.data.update_reader import UpdateReader
from tests.kit.paced import find_processes
from tests.kit.paced import wait_until as wait_for
from tests.kit.runs import change, differing, read_records, read_step, tiny_run
from tests.train.processes import KILLED, finish, kill, run, start, wait_until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(
        importlib.util.find_spec("torchft") is None, reason="torchft is not installed: pip install -e '.[ft]'"
    ),
]
ROOT = Path(__file__).parents[2]
REPLICAS, STEPS, GLOBAL_BATCH = 3, 60, 12
HEARTBEAT_SECONDS = 1.0
"""After so long without a sign the lighthouse counts a replica as lost."""
PAUSE_SECONDS = 5.0
"""What a survivor may take for a step in which another one is lost: the heartbeat, and a second try on busy cores."""
COMMON = ("loss", "grad_norm", "lr", "tokens", "cursor", "replicas")
TOLERANCE = 1e-5
"""Of the loss of a step, relative to one process that reads every sample itself: sums have another order."""


@dataclass(frozen=True)
class SampleLog:
    """Writes down which samples are about to be computed with, and leaves time for faults."""

    path: Path
    seconds: float = 0.1

    def install(self):
        read = UpdateReader.read

        def read_and_log(reader, cursor, part, parts):
            chosen = read(reader, cursor, part, parts)
            samples = [number for batch in chosen for number in batch.tensors["samples"].tolist()]
            first = cursor.count_samples(reader.data.samples_per_epoch)
            line = json.dumps({"first": first, "part": part, "parts": parts, "samples": samples})
            with self.path.open("a") as file:
                file.write(f"{line}\n")
            time.sleep(self.seconds)
            return chosen

        UpdateReader.read = read_and_log


class ReplicatedJob:
    """Three replicas and their lighthouse."""

    def __init__(self, folder, changes, *, model, min_replicas=2):
        os.environ.setdefault("RUST_LOG", "error")
        from torchft.coordination import LighthouseServer

        self.folder, self.changes, self.model = folder, changes, model
        self.lighthouse = LighthouseServer(
            bind="127.0.0.1:0",
            min_replicas=min_replicas,
            join_timeout_ms=20_000,
            heartbeat_timeout_ms=int(1000 * HEARTBEAT_SECONDS),
        )
        self.address = f"http://127.0.0.1:{self.lighthouse.address().rpartition(':')[2]}"

    def config(self, number):
        settings = {
            "fault_tolerance.replicas": REPLICAS,
            "fault_tolerance.replica": number,
            "fault_tolerance.min_replicas": 2,
            "fault_tolerance.lighthouse": self.address,
            "fault_tolerance.timeout_seconds": 20.0,
            "fault_tolerance.quorum_seconds": 60.0,
            "checkpoint.load": "auto",
        }
        return make_config(self.path(number), {**settings, **self.changes}, model=self.model)

    def path(self, number):
        return self.folder / f"replica_{number}"

    def start(self, number):
        return start(self.config(number), SampleLog(self.folder / f"samples-{number}.jsonl"))

    def count_steps(self, number):
        path = self.path(number) / "metrics.jsonl"
        return len(read_records(self.path(number))) if path.exists() else 0

    def read_samples(self, number):
        return [json.loads(line) for line in (self.folder / f"samples-{number}.jsonl").read_text().splitlines()]


def make_config(folder, changes, *, model):
    config = tiny_run(folder, model=model)
    plain = {"training.steps": STEPS, "training.global_batch_size": GLOBAL_BATCH, "training.local_batch_size": 1}
    for path, value in {**plain, "training.compute_dtype": "float32", "checkpoint.enabled": True, **changes}.items():
        change(config, path, value)
    return config


def merge_records(job):
    """The records of all steps that were made; whoever made a step has the same numbers for it."""
    merged = {}
    for number in range(REPLICAS):
        for record in read_records(job.path(number)):
            known = merged.setdefault(record["step"], record)
            assert [known[name] for name in COMMON] == [record[name] for name in COMMON]
    return [merged[step] for step in sorted(merged)]


def find_pauses(folder):
    """Seconds between the ends of two steps."""
    times = [record["time"] for record in read_records(folder)]
    return [after - before for before, after in itertools.pairwise(times)]


def find_seen(job, records):
    """The samples of every step that was made, as its participants computed them."""
    seen = defaultdict(list)
    logs = {number: job.read_samples(number) for number in range(REPLICAS)}
    for record in records:
        first = (record["step"] - 1) * GLOBAL_BATCH
        for log in logs.values():
            tries = [each for each in log if each["first"] == first and each["parts"] == record["replicas"]]
            seen[record["step"]] += tries[-1]["samples"] if tries else []
    return seen


def check_survivors(job, numbers, *, longest):
    """Survivors make every step once and never stop; who takes part in a step has its samples, all have its numbers."""
    records = merge_records(job)
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    pauses = []
    for number in numbers:
        steps = [record["step"] for record in read_records(job.path(number))]
        assert steps == list(range(steps[0], STEPS + 1)) and steps[0] <= 2, "it may join after the first step"
        pauses += find_pauses(job.path(number))
    print(f"longest pause of a survivor {max(pauses):.2f} s, median {sorted(pauses)[len(pauses) // 2]:.2f} s")
    assert max(pauses) < longest
    assert {record["replicas"] for record in records} == {2, 3} and records[-1]["replicas"] == 3
    seen = find_seen(job, records)
    assert {step: sorted(samples) for step, samples in seen.items()} == {
        step: list(range((step - 1) * GLOBAL_BATCH, step * GLOBAL_BATCH)) for step in range(1, STEPS + 1)
    }
    return records


def check_equal(job):
    """Every tensor of the last checkpoint is the same on all replicas, bit for bit."""
    states = [read_step(job.path(number), STEPS) for number in range(REPLICAS)]
    assert [differing(states[0], other) for other in states[1:]] == [[], []]


@pytest.mark.parametrize(("mode", "model"), [("graph", "deepseek_v3"), ("eager", "llama3")])
def test_a_killed_replica_comes_back_while_the_others_train_on(tmp_path, mode, model):
    job = ReplicatedJob(tmp_path, {"compile.mode": mode}, model=model)
    replicas = [job.start(number) for number in range(REPLICAS)]
    wait_until(lambda: job.count_steps(0) >= 8, replicas[0])
    assert kill(replicas[2]) == KILLED
    lost = job.count_steps(0)
    wait_until(lambda: job.count_steps(0) >= lost + 5, replicas[0])
    replicas[2] = job.start(2)
    assert [finish(process) for process in replicas] == [0, 0, 0]
    records = check_survivors(job, (0, 1), longest=PAUSE_SECONDS)
    check_equal(job)
    alone = tmp_path / "alone"
    assert run(make_config(alone, {"compile.mode": mode}, model=model)) == 0
    expected = [record["loss"] for record in read_records(alone)]
    assert [record["loss"] for record in records] == pytest.approx(expected, rel=TOLERANCE)


def test_a_replica_that_hangs_is_left_behind_and_comes_back(tmp_path):
    limit = 4.0
    job = ReplicatedJob(tmp_path, {"fault_tolerance.timeout_seconds": limit}, model="llama3")
    replicas = [job.start(number) for number in range(REPLICAS)]
    wait_until(lambda: job.count_steps(0) >= 8, replicas[0])
    tried = len(job.read_samples(1))
    wait_until(lambda: len(job.read_samples(1)) > tried, replicas[1])
    os.kill(replicas[1].pid, signal.SIGSTOP)  # inside of an update: the others wait for its sums
    lost = job.count_steps(0)
    wait_until(lambda: job.count_steps(0) >= lost + 5, replicas[0])
    os.kill(replicas[1].pid, signal.SIGCONT)
    assert [finish(process) for process in replicas] == [0, 0, 0]
    check_survivors(job, (0, 2), longest=limit + PAUSE_SECONDS)
    assert limit < max(find_pauses(job.path(0)))
    check_equal(job)


def test_replicas_that_are_too_few_end_in_words_and_continue_together(tmp_path):
    changes = {"fault_tolerance.quorum_seconds": 5.0, "checkpoint.interval": 5}
    job = ReplicatedJob(tmp_path, changes, model="llama3")
    replicas = [job.start(number) for number in range(REPLICAS)]
    wait_until(lambda: job.count_steps(0) >= 8, replicas[0])
    for number in (
        0,
        2,
    ):  # at once: one that waits for a quorum when it is killed is counted until its heartbeat is late
        replicas[number].kill()
    assert [finish(replicas[number]) for number in (0, 2)] == [KILLED, KILLED]
    assert finish(replicas[1]) == 1
    flags = f"--fault_tolerance.replicas 2 --fault_tolerance.min_replicas 2 --fault_tolerance.lighthouse {job.address}"
    more = f"--fault_tolerance.quorum_seconds 5 --training.global_batch_size 2 --job.dump_folder {tmp_path / 'lone'}"
    command = [sys.executable, "-m", "monograph", "train", "tests.kit.paced:paced", *flags.split(), *more.split()]
    lone = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert lone.returncode == 1 and "fewer than 2 replicas (fault_tolerance.min_replicas) within 5 s" in lone.stderr
    job.changes["fault_tolerance.quorum_seconds"] = 60.0
    replicas = [job.start(number) for number in range(REPLICAS)]
    assert [finish(process) for process in replicas] == [0, 0, 0]
    assert [record["step"] for record in merge_records(job)] == list(range(1, STEPS + 1))
    check_equal(job)


def test_a_replica_of_two_ranks_is_lost_whole_and_comes_back(tmp_path):
    job = ReplicatedJob(tmp_path, {}, model="llama3", min_replicas=1)
    replicas = [start_two_ranks(job, number) for number in range(2)]
    try:
        wait_for(lambda: job.count_steps(0) >= 10, 120, "ten steps")
        assert len(kill_all(job, 1)) == 3
        lost = job.count_steps(0)
        wait_for(lambda: job.count_steps(0) >= lost + 3, 60, "steps without the other replica")
        replicas[1] = start_two_ranks(job, 1)
        assert [process.wait(timeout=240) for process in replicas] == [0, 0]
    finally:
        for number in range(2):
            kill_all(job, number)
    records = read_records(job.path(0))
    assert [record["step"] for record in records] == list(range(records[0]["step"], STEPS + 1))
    assert {record["replicas"] for record in records} == {1, 2} and records[-1]["replicas"] == 2
    pauses = sorted(find_pauses(job.path(0)))
    print(f"longest pause of the survivor {pauses[-1]:.2f} s, median {pauses[len(pauses) // 2]:.2f} s")
    assert pauses[-1] < PAUSE_SECONDS
    assert not differing(*(read_step(job.path(number), STEPS) for number in range(2)))


def start_two_ranks(job, number):
    """A replica that is a launcher with two ranks."""
    flags = {
        "fault_tolerance.replicas": 2,
        "fault_tolerance.replica": number,
        "fault_tolerance.lighthouse": job.address,
        "fault_tolerance.timeout_seconds": 20,
        "parallelism.data_parallel_shard_degree": 2,
        "training.steps": STEPS,
        "training.global_batch_size": 8,
        "model.pause_seconds": 0.1,
        "checkpoint.enabled": "true",
        "checkpoint.load": "auto",
        "job.dump_folder": job.path(number),
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "monograph", "train", "tests.kit.paced:paced", "--ranks", "2", *words]
    return subprocess.Popen(command, cwd=ROOT)


def kill_all(job, number):
    """Kill launcher and ranks of a replica; their pids."""
    found = list(find_processes(str(job.path(number))))
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found
