"""The pool of ranks: fresh worlds on old processes, errors with their origin, and no one waits for ever."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from monograph.axes import Group
from monograph.parallel.collectives import all_reduce_over
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from tests.kit.ranks import RankDied, RankPool, RanksTimedOut, RemoteTraceback, pool

CPU = torch.device("cpu")


def sum_over_world(size: int) -> tuple[int, int]:
    with joined_groups(Mesh(dp_shard=size), CPU, timeout_seconds=30) as groups:
        return os.getpid(), int(all_reduce_over(torch.tensor(groups.rank + 1), Group.WORLD))


def fail_on_rank_1() -> None:
    with joined_groups(Mesh(dp_shard=2), CPU, timeout_seconds=30) as groups:
        if groups.rank == 1:
            raise ValueError("rank 1 says no")
        all_reduce_over(torch.tensor(1), Group.WORLD)


def leave_group_behind() -> None:
    dist.init_process_group("gloo")


def die_on_rank_1() -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)


def abort_on_rank_1() -> None:
    if os.environ["RANK"] == "1":
        os.abort()


def sleep_on_rank_0() -> None:
    if os.environ["RANK"] == "0":
        time.sleep(60)


def test_ranks_are_reused_and_every_task_gets_a_world_of_its_own():
    first, second = pool.run(2, sum_over_world, 2), pool.run(4, sum_over_world, 4)
    assert [value for _, value in first] == [3, 3]
    assert [value for _, value in second] == [10] * 4
    assert [pid for pid, _ in first] == [pid for pid, _ in second][:2]


def test_the_exception_of_the_rank_that_failed_first_is_raised_with_its_traceback():
    with pytest.raises(ValueError, match="rank 1 says no") as caught:
        pool.run(2, fail_on_rank_1)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "rank 1 of 2" in str(caught.value.__cause__) and "fail_on_rank_1" in str(caught.value.__cause__)
    assert [value for _, value in pool.run(2, sum_over_world, 2)] == [3, 3], "the pool serves on"


def test_a_task_that_leaves_its_process_group_behind_is_an_error():
    with pytest.raises(AssertionError, match="left its process group behind"):
        pool.run(1, leave_group_behind)


def test_a_rank_that_dies_or_hangs_costs_the_pool_but_not_the_session():
    with pytest.raises(RankDied, match=r"rank 1 was killed by SIGKILL \(exit code -9\)"):
        pool.run(2, die_on_rank_1)
    with pytest.raises(RankDied, match=r"rank 1 was killed by SIGABRT(.|\n)*in abort_on_rank_1"):
        pool.run(2, abort_on_rank_1)
    own = RankPool()
    own.run(2, os.getpid)
    with pytest.raises(RanksTimedOut, match=r"ranks \[0\] of 2"):
        own.run(2, sleep_on_rank_0, timeout_seconds=1.5)
    assert [value for _, value in own.run(2, sum_over_world, 2)] == [3, 3]
    own.leave()
