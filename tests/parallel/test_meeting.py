"""Ranks that are started anew find each other, whatever earlier ranks left in the store that the launcher kept."""

import resource
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from monograph.errors import ConfigError
from monograph.parallel import meeting
from monograph.parallel.meeting import make_room_for_sockets, meet
from tests.launch.agents import find_port

LIMIT = timedelta(seconds=20)
SHORT = timedelta(seconds=0.3)


def join(store, ranks, *, world, timeout=LIMIT):
    """These ranks of a world, as threads; for each the key that the first one leaves, or its error."""

    def work(rank):
        own = meet(store, rank, world, timeout=timeout)
        if rank == 0:
            own.set("address", "the first rank's")
        return own.get("address").decode()

    with ThreadPoolExecutor(len(ranks)) as pool:
        return [each.result() for each in [pool.submit(work, rank) for rank in ranks]]


@pytest.fixture
def store():
    made = dist.HashStore()
    made.set_timeout(LIMIT)
    return made


def test_ranks_meet_again_although_one_of_them_never_came_the_time_before(store):
    with pytest.raises(ConfigError, match="1 of 2 ranks have not come"):
        join(store, [0], world=2, timeout=SHORT)
    assert len(join(store, [0, 1], world=2)) == 2


def test_ranks_meet_again_although_the_first_one_never_came_the_time_before(store):
    store.set_timeout(SHORT)
    with pytest.raises(dist.DistStoreError):
        join(store, [1], world=2)
    store.set_timeout(LIMIT)
    assert len(join(store, [0, 1], world=2)) == 2


def test_a_world_that_grows_and_shrinks_meets_every_time(store):
    for world in (2, 4, 3, 1, 2):
        assert join(store, list(range(world)), world=world) == ["the first rank's"] * world


def test_a_store_that_another_job_named_is_not_used(monkeypatch, tmp_path):
    """A shell that a rank has started hands its variables on."""
    monkeypatch.setenv(meeting.STORE_VARIABLE, str(tmp_path / "store"))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(find_port()))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert meeting.join(1, 0, LIMIT)[1] == 1, "no launcher: one process"
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert meeting.join(1, 0, LIMIT)[1] == 1, "under torchrun"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("soft", "hard", "ranks", "wanted"), [(1024, 4096, 8, None), (1024, 4096, 1024, 2560)])
def test_a_rank_may_open_a_socket_to_every_other_one(monkeypatch, soft, hard, ranks, wanted):
    given = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: given.append(limits))
    make_room_for_sockets(ranks)
    assert given == ([] if wanted is None else [(wanted, hard)])


def test_more_ranks_than_a_system_has_files_for_are_refused_with_what_to_raise(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 1024))
    with pytest.raises(ConfigError, match="a rank of 1024 opens about 2560 files") as refused:
        make_room_for_sockets(1024)
    assert "ulimit -Hn 2560" in refused.value.do
