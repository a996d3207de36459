"""A stage's rank that dies or hangs: the others end within the timeout, say where they waited, and the run resumes."""

import json
import re
import signal

import pytest

from monograph.execute.pipeline.links import PipelineStalled
from tests.kit.ranks import RankDied, RanksTimedOut, pool
from tests.kit.tiny import tiny
from tests.parallel.pipeline.pipeline_work import train_into_fault, train_once

STEPS = {
    "compile.mode": "graph",
    "training.steps": 3,
    "training.global_batch_size": 4,
    "checkpoint.interval": 1,
    "checkpoint.load": "auto",
    "debug.deterministic": True,
    "lr_scheduler.warmup_steps": 0,
    "lr_scheduler.decay": "constant",
}


def read_losses(folder):
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: (record["loss"], record["grad_norm"]) for record in records if "loss" in record}


def break_one(folder, victim, action, number, timeout_seconds):
    degrees = {"pipeline_parallel_degree": 2}
    config = tiny("llama3", folder, STEPS, **degrees)
    config.parallelism.timeout_seconds = timeout_seconds
    with pytest.raises((RankDied, RanksTimedOut, PipelineStalled)):
        pool.run(2, train_into_fault, config, victim, action, number, folder, timeout_seconds=timeout_seconds + 25)
    return (folder / f"rank-{1 - victim}.txt").read_text()


def test_a_killed_stage_ends_the_others_with_the_waiting_action_and_the_run_resumes(tmp_path):
    said = break_one(tmp_path, 1, "1B1", signal.SIGKILL, 30)
    waits = "(0B1 for 1SEND_B1|the send for 1RECV_F2)"  # the second where rank 1 died before it had read its input
    assert re.match(rf"PipelineStalled: pipeline rank 0 \(rank 0\) waited in {waits} of pipeline rank 1", said)
    config = tiny("llama3", tmp_path, STEPS, pipeline_parallel_degree=2)
    pool.run(2, train_once, config)
    pool.run(1, train_once, tiny("llama3", tmp_path / "alone", STEPS))
    assert read_losses(tmp_path) == read_losses(tmp_path / "alone")


@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "action", "waited"),
    [(0, "0F2", "rank 1 (rank 1) waited in 1F2 for 0SEND_F2"), (1, "1F0", "rank 0 (rank 0) waited in")],
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stops_anywhere_is_waited_for_no_longer_than_the_timeout(
    victim, action, waited, number, tmp_path
):
    said = break_one(tmp_path, victim, action, number, 8)
    assert waited in said
