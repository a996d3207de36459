"""Sums that surround a step."""

import pytest
import torch

import monograph.parallel.mesh_reductions
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.mesh_reductions import all_reduce_over_data, all_reduce_over_tokens


@pytest.mark.parametrize("sum_over", [all_reduce_over_data, all_reduce_over_tokens])
def test_a_sum_over_one_rank_starts_no_collective_and_is_a_copy(sum_over, monkeypatch):
    """A copy: what a recorded step yields is overwritten by the next one."""
    monkeypatch.setattr(
        monograph.parallel.mesh_reductions, "all_reduce_over", lambda *_: pytest.fail("this starts a collective")
    )
    value = torch.tensor([3.0, 4.0])
    with joined_groups(Mesh(), torch.device("cpu")):
        found = sum_over(value)
    value.zero_()
    assert found.tolist() == [3.0, 4.0]
