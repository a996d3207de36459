"""Communicators of NCCL are made before the first step, each by its own collectives, named and counted."""

import itertools
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from monograph.axes import Group
from monograph.parallel import connect as connecting
from monograph.parallel.connect import connect, describe_connected
from monograph.parallel.mesh import Mesh
from monograph.parallel.mesh_reductions import REDUCTIONS

CPU = torch.device("cpu")


@pytest.fixture
def made(monkeypatch):
    """What was started on which group, on a GPU whose memory shrinks by 1 GiB for each."""
    found = []
    free = itertools.count(1000, -1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(free) << 30, 100 << 30))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    note = {use: lambda box, group, use=use: found.append((group, use)) for use in connecting._USES}
    with mock.patch.dict(connecting._USES, note):
        yield found


def make_groups(mesh, rank=0, *, is_nccl=True):
    return SimpleNamespace(
        mesh=mesh, rank=rank, device=CPU, timeout_seconds=30.0, is_nccl=is_nccl, process_group=lambda group: group.value
    )


def test_only_what_the_step_uses_is_connected_and_exchanges_connect_pairs(made):
    mesh = Mesh(dp_shard=4, tp=2, ep=4)
    rows = connect(make_groups(mesh), {Group.FSDP_GATHER, Group.EP, *REDUCTIONS})
    assert {name for name, use in made if use == "all_to_all"} == {"ep"}
    names = {name for each in rows for name in each.name.split("+")}
    assert {"fsdp_gather", "fsdp_scatter", "ep", "batch", "world"} <= names and not names & {
        "tp",
        "ep_dispatch",
        "pp_up",
    }
    assert all(each.bytes == 1 << 30 for each in rows)
    assert f"{len(rows)} communicators: {len(rows)}.00 GiB of GPU memory" in describe_connected(rows)


def test_all_ranks_connect_in_one_order(made):
    mesh, orders = Mesh(pp=2, dp_shard=2, tp=2), []
    for rank in range(mesh.world_size):
        made.clear()
        connect(make_groups(mesh, rank), {*Group})
        orders.append([name for name, _ in made])
    assert len({tuple(order) for order in orders}) == 1 and orders[0]


def test_gloo_needs_no_communicators(made):
    assert connect(make_groups(Mesh(dp_shard=4), is_nccl=False), {*Group}) == [] and not made


def test_an_exchange_that_the_step_does_not_use_connects_no_pairs(made):
    """Counts share a communicator with sums that every step uses; only overlap exchanges them."""
    connect(make_groups(Mesh(dp_shard=8, ep=8)), REDUCTIONS)
    assert made and all(use == "all_reduce" for _, use in made)
