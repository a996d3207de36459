"""Saves into each folder given, in a process that kills itself at the call named before the folder.

A program of its own, because only a process without threads may fork safely, and each child must be a fork to be quick.
"""

import os
import signal
import sys
from pathlib import Path

import torch

from tests.train.checkpoint.disks import KillingDisk, save_new


def main(step: int, words: list[str]) -> None:
    torch.set_num_threads(1)
    for at, folder in (word.split(":", 1) for word in words):
        child = os.fork()
        if child == 0:
            try:
                save_new(Path(folder), KillingDisk(int(at)), step, {"keep_last": 1})
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
