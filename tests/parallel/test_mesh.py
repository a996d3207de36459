"""The mesh as numbers: every rank has one place, every group is a partition, and what does not fit is refused."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monograph.axes import Axis, Group
from monograph.errors import ConfigError
from monograph.parallel.config import ParallelismConfig
from monograph.parallel.mesh import Mesh, all_meshes, plan_mesh

UNHURRIED = settings(deadline=None, max_examples=30)
DENSE, EXPERTS = (Axis.PP, Axis.DP_REPLICATE, Axis.FSDP, Axis.TP), (Axis.PP, Axis.DP_REPLICATE, Axis.EFSDP, Axis.EP)


@st.composite
def meshes(draw) -> Mesh:
    """Any mesh the experts' view fits into, also with axes that nothing runs along yet."""
    small = st.integers(1, 3)
    pp, replicate, shard, cp, tp = (draw(small) for _ in range(5))
    etp = draw(st.sampled_from([1, tp]))
    rest = shard * cp * tp // etp
    ep = draw(st.sampled_from([degree for degree in range(1, rest + 1) if rest % degree == 0]))
    return Mesh(pp=pp, dp_replicate=replicate, dp_shard=shard, cp=cp, tp=tp, ep=ep, etp=etp)


@given(meshes())
@UNHURRIED
def test_the_groups_of_every_kind_divide_the_world_into_equal_parts(mesh):
    for group in Group:
        members = [mesh.members(group, rank) for rank in range(mesh.world_size)]
        parts = set(members)
        assert sorted(rank for part in parts for rank in part) == list(range(mesh.world_size))
        assert {len(part) for part in parts} == {mesh.group_size(group)}
        assert all(rank in part for rank, part in enumerate(members))


@given(meshes())
@UNHURRIED
def test_coordinates_name_each_rank_once_in_both_views(mesh):
    for view in (DENSE, (*EXPERTS, Axis.ETP)):
        indices = [tuple(mesh.coordinate(rank, axis) for axis in view) for rank in range(mesh.world_size)]
        assert len(set(indices)) == mesh.world_size
        for axis, column in zip(view, zip(*indices, strict=True), strict=True):
            assert set(column) == set(range(mesh.degree(axis)))
        assert indices == sorted(indices), "the last axis of a view moves fastest"


@given(meshes())
@UNHURRIED
def test_members_stand_in_the_order_of_their_coordinate(mesh):
    along = {
        Group.FSDP_GATHER: Axis.FSDP,
        Group.TP: Axis.TP,
        Group.CP: Axis.CP,
        Group.EFSDP_SCATTER: Axis.EFSDP,
        Group.EP: Axis.EP,
    }
    for group, axis in along.items():
        for rank in range(mesh.world_size):
            members = mesh.members(group, rank)
            assert [mesh.coordinate(member, axis) for member in members] == list(range(len(members)))


@given(meshes())
@UNHURRIED
def test_each_part_of_a_batch_goes_to_one_set_of_peers(mesh):
    readers = {}
    for rank in range(mesh.world_size):
        readers.setdefault(mesh.data_part(rank), []).append(rank)
    assert set(readers) == set(range(mesh.data_parts))
    assert {len(ranks) for ranks in readers.values()} == {mesh.world_size // mesh.data_parts}
    for rank in range(mesh.world_size):
        assert all(mesh.data_part(peer) == mesh.data_part(rank) for peer in mesh.members(Group.TP, rank))
        peers = mesh.members(Group.BATCH, rank)
        assert len({mesh.data_part(peer) for peer in peers}) * mesh.cp == len(peers), "a sum over them counts once"


@given(meshes())
@UNHURRIED
def test_both_views_have_the_same_ranks(mesh):
    assert mesh.fsdp * mesh.tp == mesh.efsdp * mesh.ep * mesh.etp == mesh.shards
    assert mesh.pp * mesh.dp_replicate * mesh.shards == mesh.world_size


def test_minus_one_takes_the_ranks_that_are_left():
    mesh = plan_mesh(ParallelismConfig(data_parallel_replicate_degree=2, tensor_parallel_degree=2), 24)
    assert (mesh.dp_replicate, mesh.dp_shard, mesh.tp, mesh.world_size) == (2, 6, 2, 24)


@pytest.mark.parametrize(
    ("degrees", "world", "said", "advice"),
    [
        ({"tensor_parallel_degree": 3}, 4, "ask for 3 ranks (tensor_parallel_degree 3) but there are 4", "--ranks 3"),
        ({"data_parallel_shard_degree": 4, "tensor_parallel_degree": 2}, 6, "ask for 8 ranks", "--ranks 8 "),
        ({"data_parallel_shard_degree": 2}, 5, "ask for 2 ranks", "--ranks 2 "),
        ({"expert_parallel_degree": 3}, 4, "expert_parallel_degree 3 x", "expert_parallel_degree 2"),
        ({"expert_parallel_degree": 8}, 4, "expert_parallel_degree 8 x", "expert_parallel_degree 4"),
        (
            {"tensor_parallel_degree": 4, "expert_tensor_parallel_degree": 2},
            8,
            "expert_tensor_parallel_degree is 2 and tensor_parallel_degree is 4",
            "expert_tensor_parallel_degree 1 or 4",
        ),
        (
            {"tensor_parallel_degree": 2, "expert_tensor_parallel_degree": 2, "expert_parallel_degree": 4},
            4,
            "expert_parallel_degree 4 x expert_tensor_parallel_degree 2 is 8",
            "expert_parallel_degree 2",
        ),
    ],
)
def test_degrees_that_do_not_fit_are_refused_with_the_numbers_and_what_would_fit(degrees, world, said, advice):
    with pytest.raises(ConfigError) as caught:
        plan_mesh(ParallelismConfig(**degrees), world)
    assert said in caught.value.what
    assert advice in caught.value.do


def test_what_tests_draw_from_holds_every_small_mesh():
    found = all_meshes(8)
    assert len(found) == len(set(found)) > 30
    assert all(mesh.world_size == 8 and mesh.shards % (mesh.ep * mesh.etp) == 0 for mesh in found)
    assert Mesh(dp_shard=4, tp=2, ep=4, etp=2) in found and Mesh(dp_replicate=2, dp_shard=2, tp=2, ep=4) in found
    assert math.prod((found[0].dp_replicate, found[0].dp_shard, found[0].tp)) == 8


def test_a_group_spans_the_ranks_from_its_first_to_its_last():
    meshes = [*all_meshes(8), Mesh(pp=2, dp_replicate=2, dp_shard=2, cp=2, tp=2, ep=4, etp=2)]
    for mesh in meshes:
        for group in Group:
            members = mesh.members(group, 0)
            assert mesh.group_span(group) == max(members) - min(members) + 1, (mesh, group)
