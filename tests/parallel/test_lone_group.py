"""A group of one rank: every collective gives a copy of what it was given."""

import os

import pytest
import torch

from monograph.axes import Group
from monograph.compat.ops import all_gather, all_reduce, all_to_all, reduce_scatter
from monograph.parallel.groups import joined_groups
from monograph.parallel.lone_group import LoneGroup
from monograph.parallel.mesh import Mesh

CALLS = {
    "all_gather": lambda value, group: all_gather(value, 1, group),
    "reduce_scatter": lambda value, group: reduce_scatter(value, 1, group),
    "all_reduce": lambda value, group: all_reduce(value, "sum", group),
    "all_to_all": lambda value, group: all_to_all(value, [value.shape[0]], [value.shape[0]], group),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_collective_of_one_rank_copies(name, dtype):
    value = torch.arange(12).view(4, 3).to(dtype)
    with joined_groups(Mesh(), torch.device("cpu")) as groups:
        assert isinstance(groups._serving[Group.WORLD], LoneGroup)
        found = CALLS[name](value, Group.WORLD.value)
        assert torch.equal(found, value) and found.dtype is dtype
        found += 1
    assert torch.equal(value, torch.arange(12).view(4, 3).to(dtype)), "the result has memory of its own"


def test_only_a_group_that_a_library_asks_for_gets_threads_of_gloo():
    before = count_threads()
    with joined_groups(Mesh(), torch.device("cpu")) as groups:
        joined = count_threads()
        assert joined - before < len(Group)
        assert groups.process_group(Group.TP).size() == 1
        assert count_threads() > joined
        assert groups.process_group(Group.TP) is groups.process_group(Group.TP)


def count_threads():
    """All of this process: a thread takes its name a moment after it started."""
    return len(os.listdir("/proc/self/task"))
