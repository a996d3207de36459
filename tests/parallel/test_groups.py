"""Groups under logical names: the same name on every rank, each resolving to that rank's own peers."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from monograph.axes import COORDS, Group
from monograph.compat.ops import all_gather
from monograph.errors import ConfigError
from monograph.parallel.groups import fake_groups, joined_groups
from monograph.parallel.mesh import Mesh
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


def wait_for_a_late_peer(done: Path) -> dict[str, float]:
    """On one rank: the seconds after which each way to wait for another gave up, while rank 1 joins none of them."""
    gave_up = {}
    with joined_groups(Mesh(dp_shard=2), CPU, timeout_seconds=1, files_timeout_seconds=1) as groups:
        ways: dict[str, Callable[[], object]] = {
            "collective": lambda: all_gather(torch.ones(1), 2, Group.FSDP_GATHER.value),
            "agreement": lambda: groups.any_rank(False),
            "files": lambda: groups.all_gather_object(None, waits_for_files=True),
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


def test_every_group_has_the_timeout_that_was_asked_for(tmp_path):
    """torch gives a new group its backend's default, half an hour, whatever the default group has."""
    gave_up, _ = pool.run(2, wait_for_a_late_peer, tmp_path / "done")
    assert set(gave_up) == {"collective", "agreement", "files"}
    assert all(0.9 < seconds < 3.5 for seconds in gave_up.values()), gave_up


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
