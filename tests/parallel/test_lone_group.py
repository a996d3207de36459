"""A group of one rank: every collective gives a copy of what it was given."""

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
