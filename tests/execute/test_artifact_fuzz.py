"""A few mutated graph files in a watched child (`make test-fuzz` runs 2,000), and that the child is watched at all."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from tests.execute.artifact_fuzz import Fuzzer, judge
from tests.execute.sandbox import can_forbid, make_watched, run_watched

SEEDS = 24

pytestmark = pytest.mark.skipif(not can_forbid(), reason="system calls are filtered on Linux (x86_64, aarch64) only")


@pytest.mark.long
def test_mutated_graphs_are_refused_or_run_without_touching_anything():
    threads = torch.get_num_threads()
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        fuzzer = Fuzzer(stack, ["collectives"])
        ended = [fuzzer.check_seed(seed) for seed in range(SEEDS)]
    assert [problem for _, problem in ended if problem] == []
    outcomes = {outcome for outcome, _ in ended}
    assert "ran" in outcomes and len(outcomes) > 3, outcomes


def write_through_torch(path):
    torch.ops.aten.from_file.default(path, True, 4, dtype=torch.uint8)


def read_quietly(path):
    os.close(os.open(path, os.O_RDONLY))


OFFENCES = {
    "a file is written": lambda path: Path(path).write_text("x"),
    "a file is mapped by an operator": write_through_torch,
    "a file is read": read_quietly,
    "a file is removed": os.unlink,
    "a program is started": lambda path: subprocess.run([sys.executable, "-c", ""], check=False),
    "a process is started": lambda path: os.fork(),
    "a socket is opened": lambda path: socket.socket(),
    "a module is imported": lambda path: __import__("this"),
    "text is run": lambda path: exec(compile("x = 1", "<file>", "exec"), {}),
    "an error is no refusal": lambda path: 1 // 0,
}


@pytest.mark.parametrize("offence", OFFENCES.values(), ids=OFFENCES)
def test_whatever_a_child_may_not_do_is_seen(offence):
    watched = make_watched()

    def work():
        offence(watched.paths[0])
        return {"outcome": "ran", "why": ""}

    ended = run_watched(work, ("/proc",))
    assert judge(ended, is_touched=watched.take_events(), changes=[])[0] == "failed"


def test_a_child_that_does_nothing_is_not_blamed():
    watched = make_watched()
    ended = run_watched(lambda: {"outcome": "ran", "why": ""}, ())
    assert judge(ended, is_touched=watched.take_events(), changes=[]) == ("ran", "")
