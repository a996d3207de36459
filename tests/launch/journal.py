"""Loaded by every rank of a test (`--import tests.launch.journal`): notes which samples each update is made of.

A disk can be declared full by a file beside the run's folder.
"""

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import monograph.train.trainer
from monograph.train.checkpoint.disk import Disk
from monograph.train.trainer import Trainer

_original = Trainer._apply
_write = Disk.sync_folder


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


def write(disk: Disk, path: Path, *rest: Any) -> Any:
    """A write to a checkpoint's file, refused while the disk counts as full."""
    if any((folder / "full-disk").exists() for folder in path.parents):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    return _write(disk, path, *rest)


monograph.train.trainer.Trainer._apply = apply
Disk.sync_folder = write
