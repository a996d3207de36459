"""A network on one machine: collectives take their time beside compute, and what was sent arrives."""

import time

import pytest
import torch

from benchmarks.fabric import Fabric, emulated_groups
from monograph.axes import Group
from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, WAIT_TENSOR
from monograph.parallel.mesh import Mesh

CPU = torch.device("cpu")
MESH = Mesh(dp_shard=2, ep=2)
EP, FSDP = Group.EP.value, Group.FSDP_GATHER.value


def test_transfers_have_the_shapes_of_a_world_of_ranks_and_loop_back():
    rows = torch.arange(8.0).view(4, 2)
    with emulated_groups(MESH, CPU, Fabric()):
        assert WAIT_TENSOR(ALL_TO_ALL(rows, [1, 3], [3, 1], EP)).equal(rows)
        assert WAIT_TENSOR(ALL_GATHER(rows, 2, FSDP)).equal(torch.cat([rows, rows]))
        assert WAIT_TENSOR(REDUCE_SCATTER(rows, "sum", 2, FSDP)).equal(rows[:2])
        assert WAIT_TENSOR(ALL_REDUCE(rows, "sum", FSDP)).equal(rows)


def test_a_transfer_takes_its_time_unless_compute_takes_longer():
    fabric = Fabric(bytes_per_second=160.0, groups=frozenset({EP}))
    rows = torch.zeros(4, 2)  # 32 bytes, of which 16 leave this rank
    with emulated_groups(MESH, CPU, fabric):
        start = time.perf_counter()
        launched = ALL_TO_ALL(rows, [2, 2], [2, 2], EP)
        assert time.perf_counter() - start < 0.08
        WAIT_TENSOR(launched)
        assert time.perf_counter() - start >= 0.1
        fabric.forget()
        launched = ALL_TO_ALL(rows, [2, 2], [2, 2], EP)
        time.sleep(0.12)
        WAIT_TENSOR(launched)
    assert fabric.seconds[EP] == pytest.approx(0.1)
    assert fabric.exposed_seconds.get(EP, 0.0) == 0.0
    assert fabric.moved_bytes[EP] == 16


def test_transfers_of_one_group_queue_and_groups_do_not_wait_for_each_other():
    fabric = Fabric(latency_seconds=0.05)
    rows = torch.zeros(4, 2)
    with emulated_groups(MESH, CPU, fabric):
        start = time.perf_counter()
        first, second = (ALL_TO_ALL(rows, [2, 2], [2, 2], EP) for _ in range(2))
        other = ALL_GATHER(rows, 2, FSDP)
        WAIT_TENSOR(other)
        WAIT_TENSOR(first)
        between = time.perf_counter() - start
        WAIT_TENSOR(second)
        assert between < 0.1 <= time.perf_counter() - start
