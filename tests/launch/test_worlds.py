"""Killed, and continued on other numbers of ranks, over several epochs: every sample is seen exactly once an epoch."""

import json
from collections import Counter

import pytest

from tests.kit.ranks import RankDied, pool
from tests.kit.runs import read_records
from tests.kit.tiny import tiny
from tests.parallel.rank_work import train_with_journal

pytestmark = pytest.mark.faults
GLOBAL_BATCH = 16
PLAN = ((2, 9), (4, 17), (1, 26), (2, 40), (4, None))
"""Ranks, and the step at which one of them is killed."""


def test_kills_and_other_numbers_of_ranks_show_every_sample_once_an_epoch(tmp_path):
    changes = {
        "training.global_batch_size": GLOBAL_BATCH,
        "training.steps": 60,
        "checkpoint.interval": 3,
        "checkpoint.load": "auto",
        "model.n_layers": 1,
    }
    config = tiny("llama3", tmp_path, changes, fsdp="graph")
    for ranks, victim_step in PLAN:
        if victim_step is None:
            pool.run(ranks, train_with_journal, config, tmp_path, 0)
            continue
        with pytest.raises(RankDied):
            pool.run(ranks, train_with_journal, config, tmp_path, victim_step)
    last = {}
    lines = [json.loads(line) for path in tmp_path.glob("journal-*") for line in path.read_text().splitlines()]
    for line in sorted(lines, key=lambda line: line["time"]):
        last.setdefault(line["step"], {}).setdefault(line["run"], []).extend(line["samples"])
    kept = {step: list(runs.values())[-1] for step, runs in last.items()}
    seen = [sample for step in sorted(kept) for sample in sorted(kept[step])]
    assert seen == list(range(60 * GLOBAL_BATCH)), "none is lost, none is repeated"
    epochs = Counter(record["cursor"]["epoch"] for record in read_records(tmp_path / "run"))
    assert len(epochs) >= 3, epochs
    assert {line["world"] for line in lines} == {1, 2, 4}
