"""What blocks inside of a library ends in words, and a transfer that fails says who waited for whom."""

import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from monograph.capture.stage import CarrySpec
from monograph.execute.pipeline.links import Links, PipelineStalled
from monograph.parallel.deadline import deadline
from monograph.parallel.mesh import Mesh

HANGING = """
import time
from monograph.parallel.deadline import deadline

with deadline("the link from pipeline rank 0 to 1", seconds=0.2, rank=3):
    time.sleep(30)
"""


def test_what_blocks_inside_of_a_library_ends_the_process_with_its_name_and_all_stacks():
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGABRT
    assert "rank 3: the link from pipeline rank 0 to 1 took longer than" in ended.stderr
    assert "parallelism.timeout_seconds" in ended.stderr and "most recent call first" in ended.stderr


def test_a_block_that_ends_in_time_goes_on():
    with deadline("a block", seconds=0.05, rank=0):
        pass
    time.sleep(0.1)


def test_a_transfer_that_cannot_be_posted_says_who_it_was_for():
    groups = SimpleNamespace(mesh=Mesh(pp=2), rank=0, device=torch.device("cpu"), timeout_seconds=1.0, observer=None)
    links = Links(groups)

    def refuse(*_):
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")

    with mock.patch("monograph.execute.pipeline.links.SEND", refuse), pytest.raises(PipelineStalled) as send:
        links.send("0S3", 1, {"h": torch.ones(2)})
    with mock.patch("monograph.execute.pipeline.links.RECV", refuse), pytest.raises(PipelineStalled) as receive:
        links.receive("1S3", 1, {"h": CarrySpec((2,), torch.float32, (1,))})
    for error, way in ((send, "the send"), (receive, "the receive")):
        assert f"pipeline rank 0 (rank 0) waited in {way} for" in error.value.what
        assert "of pipeline rank 1 (rank 1)" in error.value.what and "Connection closed" in error.value.why
