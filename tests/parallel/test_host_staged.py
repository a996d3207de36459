"""Ranks that share a GPU: every collective goes through host memory, and the graph does not show it."""

import pytest
import torch

from monograph.axes import Group
from monograph.compat.capture import fake_tensors, trace_function
from monograph.compat.ops import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    REDUCE_SCATTER,
    WAIT_TENSOR,
    alias_process_group,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
    remove_group_alias,
)
from monograph.parallel.groups import joined_groups
from monograph.parallel.host_staged import HostStagedGroup
from monograph.parallel.mesh import Mesh
from tests.kit.ranks import pool

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.int64)


def run_collectives(rank: int, group: str) -> list[torch.Tensor]:
    found = []
    for dtype in DTYPES:
        value = (torch.arange(12).view(6, 2) + 10 * rank).to(dtype)
        sent = [4, 2] if rank == 0 else [1, 5]
        received = [4, 1] if rank == 0 else [2, 5]
        found += [
            all_gather(value, 2, group),
            all_gather(value.t().contiguous(), 2, group),
            reduce_scatter(value, 2, group),
            all_reduce(value, "sum", group),
            all_reduce(value, "max", group),
            all_to_all(value, received, sent, group),
        ]
    return found


def compare_with_gloo() -> list[bool]:
    with joined_groups(Mesh(dp_shard=2), CPU, timeout_seconds=30) as groups:
        group = HostStagedGroup(groups.process_group(Group.WORLD))
        alias_process_group("staged", group)
        plain, staged = (run_collectives(groups.rank, name) for name in (Group.WORLD.value, "staged"))
        remove_group_alias("staged")
        return [torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(plain, staged, strict=True)]


def test_staged_collectives_give_what_gloo_gives():
    for equal in pool.run(2, compare_with_gloo):
        assert len(equal) == 6 * len(DTYPES) and all(equal)


@pytest.mark.parametrize(
    ("collective", "op"),
    [
        (lambda value: all_gather(value, 1, "staged"), ALL_GATHER),
        (lambda value: reduce_scatter(value, 1, "staged"), REDUCE_SCATTER),
        (lambda value: all_reduce(value, "sum", "staged"), ALL_REDUCE),
        (lambda value: all_to_all(value, [4], [4], "staged"), ALL_TO_ALL),
    ],
)
def test_what_is_captured_does_not_depend_on_what_moves_the_bytes(collective, op):
    with joined_groups(Mesh(), CPU) as groups:
        group = HostStagedGroup(groups.process_group(Group.WORLD))
        alias_process_group("staged", group)
        with fake_tensors() as mode:
            graph = trace_function(collective, [torch.empty(4, 2)], mode)
        remove_group_alias("staged")
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [op, WAIT_TENSOR]
