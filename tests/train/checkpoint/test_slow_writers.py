"""A rank that takes long to write its part of a checkpoint is named, with the file and the time."""

import logging
import os
import time
from unittest.mock import patch

from monograph.run import train
from monograph.train.checkpoint.disk import Disk
from tests.kit.ranks import pool
from tests.kit.runs import read_records
from tests.kit.tiny import tiny
from tests.train.checkpoint.disks import make_manager, make_state

LIMIT, SECONDS = 0.05, 0.8


class SlowDisk(Disk):
    """Takes its time to make a file durable."""

    def sync(self, file):
        time.sleep(SECONDS)
        os.fsync(file)


def train_with_slow_disk(config, victim):
    """On one rank: train; syncing is slow on the victim."""
    if int(os.environ["RANK"]) != victim:
        return train(config)
    with patch.object(Disk, "sync", SlowDisk.sync):
        return train(config)


def test_a_rank_with_a_slow_disk_is_named_in_log_and_records_while_training_goes_on(tmp_path):
    changes = {
        "training.steps": 14,
        "model.n_layers": 1,
        "checkpoint.interval": 8,
        "checkpoint.async_save": True,
        "checkpoint.slow_write_seconds": LIMIT,
    }
    pool.run(2, train_with_slow_disk, tiny("llama3", tmp_path, changes, fsdp="graph"), 1)
    records = [each for each in read_records(tmp_path / "run") if "slow_writer" in each]
    named = [each["slow_writer"] for each in records]
    assert named and 8 < records[0]["step"] <= 14, "steps were made while the rank was writing"
    assert {each["rank"] for each in named} == {1}
    assert all(each["file"].endswith("/rank-00001.safetensors") and each["seconds"] >= LIMIT for each in named)
    log = (tmp_path / "run" / "logs" / "rank-0.log").read_text()
    assert "the checkpoint of step 8 waits for rank 1 (" in log and "/rank-00001.safetensors for " in log


def test_warnings_come_when_the_time_has_doubled_and_a_quick_save_has_none(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "monograph"):
        with make_manager(tmp_path, SlowDisk(), slow_write_seconds=LIMIT) as manager:
            manager.save(1, make_state(1), {})
        assert 4 <= len(caplog.records) <= 10, "both files took sixteen times the limit"
        caplog.clear()
        with make_manager(tmp_path, slow_write_seconds=5) as manager:
            manager.save(2, make_state(2), {})
            assert manager.writers.describe() == {}
        assert not caplog.records
