"""Groups under logical names: the same name on every rank, each resolving to that rank's own peers."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from monograph.axes import COORDS, Group
from monograph.compat.ops import all_gather
from monograph.errors import ConfigError
from monograph.parallel.groups import fake_groups, joined_groups
from monograph.parallel.lone_group import LoneGroup
from monograph.parallel.mesh import Mesh
from monograph.parallel.rank_devices import NCCL
from tests.kit.paced import wait_until
from tests.kit.ranks import pool
from tests.parallel.exit_work import talk_and_leave

CPU = torch.device("cpu")
CONCURRENT = (
    (Group.FSDP_GATHER, Group.FSDP_SCATTER),
    (Group.EFSDP_GATHER, Group.EFSDP_SCATTER),
    (Group.TP, Group.TP_GRADS),
)
"""Streams that run at the same time over the same ranks."""


def ask_every_group(mesh: Mesh) -> dict:
    """On one rank: who answers under each name, and what this rank knows of itself."""
    with joined_groups(mesh, CPU, timeout_seconds=30) as groups:
        mine = torch.tensor([groups.rank])
        heard = {name: all_gather(mine, mesh.group_size(name), name.value).tolist() for name in Group}
        own = all(groups.process_group(one) is not groups.process_group(other) for one, other in CONCURRENT)
        files = groups.checkpoint_group()
        return {
            "heard": heard,
            "coords": groups.coords(),
            "own": own and (files is None or files not in [groups.process_group(name) for name in Group]),
            "any": (groups.any_rank(groups.rank == mesh.world_size - 1), groups.any_rank(False)),
        }


def join_twice_and_look_for_leftovers() -> bool:
    for _ in range(2):
        with joined_groups(Mesh(dp_shard=2), CPU, timeout_seconds=30):
            pass
    try:
        all_gather(torch.ones(1), 2, Group.WORLD.value)
    except RuntimeError:
        return not dist.is_initialized()
    return False


@pytest.mark.parametrize(
    "mesh", [Mesh(dp_replicate=2, dp_shard=2, tp=2, ep=2, etp=2), Mesh(dp_shard=4, tp=2, ep=4), Mesh()], ids=str
)
def test_every_name_resolves_to_the_ranks_own_peers_in_order(mesh):
    answers = pool.run(mesh.world_size, ask_every_group, mesh)
    for rank, answer in enumerate(answers):
        assert answer["heard"] == {name: list(mesh.members(name, rank)) for name in Group}
        assert answer["coords"].dtype is torch.int64
        assert answer["coords"].tolist() == [mesh.coordinate(rank, axis) for axis in COORDS]
        assert answer["own"], "concurrent streams and files have communicators of their own"
        assert answer["any"] == (True, False)


def test_leaving_takes_the_names_back():
    assert pool.run(2, join_twice_and_look_for_leftovers) == [True, True]


def test_a_traceback_after_a_run_is_pythons_own():
    before = sys.excepthook
    with joined_groups(Mesh(), CPU, timeout_seconds=30):
        assert sys.excepthook is not before, "torch names the rank in every line"
    assert sys.excepthook is before


def test_one_process_can_pretend_to_be_any_rank_of_a_large_world():
    mesh = Mesh(dp_replicate=4, dp_shard=32, tp=8, ep=64)
    for rank in (0, 777):
        start = time.process_time()
        with fake_groups(mesh, rank, CPU) as groups:
            assert time.process_time() - start < 5
            assert dist.get_world_size() == 1024
            gathered = all_gather(torch.ones(3, 2), mesh.group_size(Group.FSDP_GATHER), Group.FSDP_GATHER.value)
            assert gathered.shape == (96, 2)
            assert groups.coords().tolist() == [mesh.coordinate(rank, axis) for axis in COORDS]
            assert groups.process_group(Group.EP).size() == 64
        assert not dist.is_initialized()


def disagree() -> str:
    with joined_groups(Mesh(dp_shard=2), CPU, timeout_seconds=30) as groups:
        text = f"first line\nline of rank {groups.rank}"
        try:
            groups.check_same("the captured graph", str(groups.rank), text=lambda: text)
        except ConfigError as error:
            return f"{error.what}; {error.why}"
    return ""


def test_ranks_that_disagree_are_told_the_first_line_that_differs():
    one, other = pool.run(2, disagree)
    assert one == other
    assert one.startswith("the captured graph of rank 1 is not that of rank 0")
    assert one.endswith("line 2: 'line of rank 0' and 'line of rank 1'")


def wait_for_a_late_peer(done: Path, is_training: bool) -> dict[str, float]:
    """On one rank: the seconds after which each way to wait for another gave up, while rank 1 joins none of them."""
    gave_up = {}
    with joined_groups(Mesh(dp_shard=2), CPU, timeout_seconds=1, files_timeout_seconds=3) as groups:
        if is_training:
            groups.start_training()
        ways: dict[str, Callable[[], object]] = {
            "collective": lambda: all_gather(torch.ones(1), 2, Group.FSDP_GATHER.value),
            "agreement": lambda: groups.any_rank(False),
        }
        for wait in ways.values():
            wait()  # everybody is connected
        if groups.rank == 1:
            wait_until(done.exists, 30, "rank 0 has given up")
            return {}
        for way, wait in ways.items():
            start = time.monotonic()
            try:
                wait()
            except RuntimeError:
                gave_up[way] = time.monotonic() - start
        done.touch()
        return gave_up


def test_ranks_wait_as_long_as_for_files_until_the_first_step(tmp_path):
    """torch gives a new group its backend's default, half an hour, whatever the default group has."""
    before, _ = pool.run(2, wait_for_a_late_peer, tmp_path / "before", False)
    after, _ = pool.run(2, wait_for_a_late_peer, tmp_path / "after", True)
    assert set(before) == set(after) == {"collective", "agreement"}
    assert 2.9 < before["agreement"] < 6.5
    assert all(0.9 < seconds < 2.9 for seconds in (before["collective"], after["collective"], after["agreement"]))


def count_sockets() -> int:
    links = [os.readlink(each.path) for each in os.scandir("/proc/self/fd") if os.path.lexists(each.path)]
    return sum(link.startswith("socket:") for link in links)


def open_sockets() -> int:
    """On one rank of four: sockets of groups under all names, and of those of the host, after a collective on each."""
    before = count_sockets()
    with joined_groups(Mesh(dp_shard=4), CPU, timeout_seconds=30) as groups:
        for group in (Group.FSDP_GATHER, Group.FSDP_SCATTER, Group.WORLD):
            all_gather(torch.ones(1), 4, group.value)
        groups.start_training()
        return count_sockets() - before


def test_groups_over_the_same_ranks_share_their_connections():
    """Once every name had a connection to every peer: at 1,024 ranks, more sockets than a process may have."""
    assert max(pool.run(4, open_sockets)) <= 32


def test_a_mesh_group_of_an_nccl_run_asks_for_nccl_alone_and_gloo_serves_the_host():
    """A new group inherits all backends of the default one: gloo beside NCCL would be a socket to every peer."""
    asked = {}

    def note(ranks=None, timeout=None, backend=None, group_desc="", pg_options=0, **_):
        asked[group_desc or "host"] = backend, pg_options
        return LoneGroup()

    def start(backend, **_):
        asked["default"] = backend

    mesh, device = Mesh(dp_shard=2, tp=2, pp=2), torch.device("cuda", 0)
    settings = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    store = dist.HashStore()
    with (
        mock.patch.dict(os.environ, settings),
        mock.patch.multiple(
            dist,
            init_process_group=start,
            new_group=note,
            destroy_process_group=lambda: None,
            get_backend_config=lambda: "cuda:nccl",
        ),
        mock.patch("monograph.parallel.groups.join", lambda *_: (store, 8)),
        mock.patch("monograph.parallel.groups.agree_on_backend", lambda *_, **__: NCCL),
        mock.patch("monograph.parallel.groups.make_nccl_options", lambda channels, _: channels),
        mock.patch("torch.cuda.set_device") as current,
        joined_groups(mesh, device) as groups,
    ):
        groups.checkpoint_group()
    current.assert_called_once_with(device)
    assert asked.pop("default") == "nccl" and asked.pop("host") == ("gloo", 0)
    assert {backend for backend, _ in asked.values()} == {"nccl"}
    served = {name for each in asked for name in each.split("+")}
    assert served == {group.value for group in Group if mesh.group_size(group) > 1}, "one rank needs no group"
    channels = {name: most for each, (_, most) in asked.items() for name in each.split("+")}
    assert channels["world"] == channels["batch"] == 2 and channels["pp_up"] == 8 and channels["fsdp_gather"] == 0


def test_no_thread_of_a_group_outlives_the_block_that_joined_it():
    for before, during, after in pool.run(2, talk_and_leave):
        assert during > before
        assert after == before


@pytest.mark.long
def test_no_thread_of_a_group_is_left_when_the_interpreter_ends(tmp_path):
    """A gloo thread that frees its last collective's tensor after that aborts the process, however well it ended."""
    words = [sys.executable, "-m", "tests.parallel.exit_work", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parent.parent.parent)
    assert done.returncode == 1 and "TrainingFailed" in done.stderr, done.stderr
    assert "threads at the end: 0" in done.stdout
