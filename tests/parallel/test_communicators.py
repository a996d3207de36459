"""Which names share a communicator, in which order they are made, and what they cost: counted, without processes."""

import pytest

from monograph.axes import Group
from monograph.parallel.communicators import plan_communicators
from monograph.parallel.mesh import Mesh
from tests.parallel.test_groups import CONCURRENT

MESHES = [
    Mesh(dp_shard=8),
    Mesh(dp_replicate=2, dp_shard=2, tp=2, ep=2, etp=2),
    Mesh(pp=2, dp_shard=2, tp=2),
    Mesh(dp_shard=4, cp=2, ep=8),
]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_names_over_the_same_ranks_share_a_communicator_unless_they_run_at_once(mesh):
    for rank in range(mesh.world_size):
        planned = plan_communicators(mesh, rank)
        served = [group for each in planned for group in each.groups]
        assert sorted(served) == sorted(group for group in Group if mesh.group_size(group) > 1)
        for one, other in CONCURRENT:
            assert not any({one, other} <= set(each.groups) for each in planned)
        assert all(each.members == mesh.members(group, rank) for each in planned for group in each.groups)


def test_sharded_data_parallelism_needs_three_communicators():
    assert [each.name for each in plan_communicators(Mesh(dp_shard=8), 0)] == [
        "fsdp_gather+efsdp_gather",
        "fsdp_scatter+efsdp_scatter",
        "batch+shards+stage+world",
    ]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_two_ranks_make_what_they_have_in_common_in_one_order(mesh):
    made = [[(each.groups, each.members) for each in plan_communicators(mesh, rank)] for rank in range(8)]
    for one in made:
        for other in made:
            assert [each for each in one if each in other] == [each for each in other if each in one]


def test_communicators_and_their_memory_grow_with_axes_and_not_with_ranks():
    counts, sizes = set(), set()
    for shards in (4, 48, 512, 1024):
        planned = plan_communicators(Mesh(dp_shard=shards, tp=2, ep=2), 0)
        counts.add(len(planned))
        sizes.add(sum(each.count_bytes(per_node=8) for each in planned))
    assert len(counts) == len(sizes) == 1 and counts.pop() <= 12


def test_an_exchange_of_a_few_counts_costs_a_sixteenth_of_one_of_rows():
    (rows,) = (each for each in plan_communicators(Mesh(dp_shard=8, ep=8), 0) if Group.EP in each.groups)
    (counts,) = (each for each in plan_communicators(Mesh(dp_shard=8, ep=8), 0) if Group.EP_COUNTS in each.groups)
    assert counts.most_channels == 2 and rows.most_channels == 0
    assert rows.count_bytes(per_node=8) > 2 << 30 and counts.count_bytes(per_node=8) < rows.count_bytes(per_node=8) / 10
