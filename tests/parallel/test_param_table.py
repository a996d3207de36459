"""The parameter table: shards put together again give the whole, and padding is nobody's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from monograph.axes import Axis
from monograph.errors import ConfigError
from monograph.models.init import initialize, materialize, plan_init
from monograph.models.parallel_plan import ShardedDim
from monograph.parallel.init_shards import fill_shards
from monograph.parallel.mesh import Mesh, all_meshes
from monograph.parallel.param_table import ParamTable, Slot, build_table, plan_shard_dim, unit_of
from tests.kit.tiny import tiny

MESHES = [mesh for size in (1, 2, 4, 8) for mesh in all_meshes(size)] + [Mesh(dp_shard=3), Mesh(dp_shard=3, tp=2)]
CUTS = ((), (ShardedDim(axis=Axis.TP, dim=0),), (ShardedDim(axis=Axis.TP, dim=1),))
EXPERT_CUTS = (ShardedDim(axis=Axis.EP, dim=0), ShardedDim(axis=Axis.ETP, dim=1))


@st.composite
def slots(draw) -> Slot:
    """A parameter of any shape; as in models, what experts are cut by divides, what the others are cut by may not."""
    mesh = draw(st.sampled_from(MESHES))
    if draw(st.booleans()):
        shape = (mesh.ep * draw(st.integers(1, 4)), mesh.etp * draw(st.integers(1, 9)), draw(st.integers(1, 3)))
        cuts, axis = EXPERT_CUTS, Axis.EFSDP
    else:
        shape = (draw(st.integers(1, 40)), mesh.tp * draw(st.integers(1, 3)))
        cuts, axis = draw(st.sampled_from(CUTS)), Axis.FSDP
    shard = ShardedDim(axis=axis, dim=plan_shard_dim(shape, cuts, mesh, axis))
    return Slot(names=("w",), shape=shape, cuts=cuts, shard=shard, unit="u", order=0, mesh=mesh)


@given(slots())
@settings(max_examples=100, deadline=None)
def test_shards_cover_every_element_and_only_replicas_hold_it_twice(slot):
    full = torch.arange(1.0, 1 + torch.Size(slot.shape).numel()).view(slot.shape)
    world = range(slot.mesh.world_size)
    shards = {rank: slot.take_shard(full, rank) for rank in world}
    assert {tuple(shard.shape) for shard in shards.values()} == {slot.local_shape}
    assert ParamTable([slot], slot.mesh).gather_full(slot, shards).equal(full)
    copies = slot.mesh.dp_replicate * (slot.mesh.tp if slot.is_replicated_over_tp else 1)
    held = torch.cat([slot.valid_part(shards[rank], rank).flatten() for rank in world])
    assert held.sort().values.equal(full.flatten().repeat_interleave(copies).sort().values)
    for rank in world:
        shards[rank] = shards[rank].clone()
        slot.valid_part(shards[rank], rank).zero_()
        assert not shards[rank].any(), "padding is zero"


@given(slots())
@settings(max_examples=100, deadline=None)
def test_every_rank_stores_the_same_amount(slot):
    for rank in range(slot.mesh.world_size):
        extents = slot.extents(rank)
        assert tuple(extent.stored for extent in extents) == slot.local_shape
        assert all(0 <= extent.size <= extent.stored for extent in extents)
        ends = [extent.start + extent.size for extent in extents]
        assert all(end <= whole for end, whole in zip(ends, slot.shape, strict=True))


def test_tied_names_share_one_slot_and_appear_in_both_units(tmp_path):
    with torch.device("meta"):
        model = tiny("qwen3", tmp_path).model.build()
    table = build_table(model, model.parallel_plan(), Mesh(dp_shard=2))
    slot = table["head.output.weight"]
    assert slot is table["embedding.weight"]
    assert slot.names == ("embedding.weight", "head.output.weight") and slot.name == "embedding.weight"
    assert ("weight", slot) in table.of_unit("embedding") and ("output.weight", slot) in table.of_unit("head")
    assert sum(torch.Size(slot.shape).numel() for slot in table) == sum(p.numel() for p in model.parameters())
    assert [slot.order for slot in table] == sorted(slot.order for slot in table)


def test_a_unit_is_the_embedding_a_block_or_the_head():
    units = dict.fromkeys(("embedding", "layers.3", "head"))
    assert unit_of("layers.3.attention.wq.weight", units) == "layers.3"
    assert unit_of("embedding.weight", units) == "embedding" and unit_of("head.norm.weight", units) == "head"
    with pytest.raises(ConfigError, match=r"pooler\.weight belongs to no unit"):
        unit_of("pooler.weight", units)


def test_few_experts_are_shared_by_their_rows_when_those_divide():
    many, few = Mesh(dp_shard=2, ep=1), Mesh(dp_shard=8, ep=2)
    assert plan_shard_dim((8, 6, 4), EXPERT_CUTS, many, Axis.EFSDP) == 0
    assert plan_shard_dim((4, 8, 4), EXPERT_CUTS, few, Axis.EFSDP) == 1, "2 experts here, 4 ranks"
    assert plan_shard_dim((4, 6, 4), EXPERT_CUTS, few, Axis.EFSDP) == 0, "6 rows do not divide by 4: padding"


@pytest.mark.parametrize("mesh", [Mesh(dp_shard=4), Mesh(dp_shard=2, tp=2, ep=2, etp=2), Mesh(dp_shard=3, tp=2, ep=2)])
def test_every_rank_starts_with_its_part_of_what_one_device_starts_with(mesh, tmp_path):
    config = tiny("deepseek_v3", tmp_path, {"model.vocab_size": 261}).model
    with torch.device("meta"):
        whole, shape = config.build(), config.build()
    materialize(whole, device="cpu", dtype=torch.float32)
    initialize(whole, seed=7)
    table, starts = build_table(shape, shape.parallel_plan(), mesh), plan_init(shape)
    for rank in range(mesh.world_size):
        shards = {slot.name: torch.full(slot.local_shape, float("nan")) for slot in table}
        fill_shards(shards, table, starts, seed=7, rank=rank)
        for slot in table:
            assert shards[slot.name].equal(slot.take_shard(whole.get_parameter(slot.name).detach(), rank)), slot.name


def test_sums_of_squares_tell_cut_parameters_from_replicated_ones(tmp_path):
    with torch.device("meta"):
        model = tiny("deepseek_v3", tmp_path).model.build()
    table = build_table(model, model.parallel_plan(), Mesh(tp=2))
    gradients = {slot.name: torch.full(slot.local_shape, 2.0) for slot in table}
    sums = table.squares(gradients)
    replicated = [slot for slot in table if not slot.cuts]
    assert replicated and sums[1] == 4 * sum(torch.Size(slot.local_shape).numel() for slot in replicated)
    assert sums.sum() == 4 * sum(torch.Size(slot.local_shape).numel() for slot in table)
