"""Loaded by every rank of a test (`--import tests.launch.journal`): notes which samples each update is made of.

Its disk fails where a test plans it (tests.launch.disk_faults).
"""

import json
import os
import time
from typing import Any

import monograph.train.trainer
from monograph.train.trainer import Trainer
from tests.launch import disk_faults

_original = Trainer._apply


def apply(self: Trainer, number: int, chosen: Any) -> Any:
    """The update, and a line about it once it is done."""
    measured = _original(self, number, chosen)
    line = {
        "time": time.time(),
        "step": number,
        "rank": int(os.environ["RANK"]),
        "world": int(os.environ["WORLD_SIZE"]),
        "samples": [sample for batch in chosen for sample in batch.tensors["samples"].tolist()],
    }
    path = self.folder.path.parent / f"journal-{os.environ['RANK']}-{os.getpid()}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return measured


monograph.train.trainer.Trainer._apply = apply
disk_faults.install()
