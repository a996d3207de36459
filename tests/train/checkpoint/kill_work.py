"""Saves into each folder given, each time in a process that kills itself one call later than the one before.

A program of its own, because only a process without threads may fork safely, and each child must be a fork to be quick.
"""

import os
import signal
import sys
from pathlib import Path

import torch

from tests.train.checkpoint.disks import KillingDisk, save_new


def main(step: int, folders: list[Path]) -> None:
    torch.set_num_threads(1)
    for at, folder in enumerate(folders, start=1):
        child = os.fork()
        if child == 0:
            try:
                save_new(folder, KillingDisk(at), step, {"keep_last": 1})
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


if __name__ == "__main__":
    main(int(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
