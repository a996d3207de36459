"""A machine starts as many ranks as it has cores and memory for, and says how many that are."""

import pytest

from monograph.errors import ConfigError
from monograph.launch import rank_limits
from monograph.launch.rank_limits import RANK_BYTES, RANKS_PER_CORE, check_local_ranks

CACHE = 1 << 30
"""Bytes of files that a container has read: the kernel gives them back."""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of 4 cores, with this much free memory, in a container or not."""

    def make(free, limit=None, used=0):
        monkeypatch.setattr(rank_limits.os, "sched_getaffinity", lambda _: range(4))
        (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {free // 1024} kB\n")
        (tmp_path / "memory.max").write_text("max" if limit is None else str(limit))
        (tmp_path / "memory.current").write_text(str(used + 5 * CACHE))
        (tmp_path / "memory.stat").write_text(f"anon {used}\ninactive_file {CACHE}\nactive_file {4 * CACHE}\n")
        monkeypatch.setattr(rank_limits, "MEMORY", tmp_path / "meminfo")
        monkeypatch.setattr(rank_limits, "CONTAINER", tmp_path)

    return make


def test_more_ranks_than_cores_can_turn_are_refused_with_the_number_that_can(machine):
    machine(free=1000 * RANK_BYTES)
    check_local_ranks(4 * RANKS_PER_CORE)
    with pytest.raises(ConfigError, match="--ranks 65 on a machine for 64"):
        check_local_ranks(4 * RANKS_PER_CORE + 1)


OUTSIDE = {"free": 8 * RANK_BYTES}
INSIDE = {"free": 1 << 40, "limit": 10 * RANK_BYTES, "used": 2 * RANK_BYTES}


@pytest.mark.parametrize("memory", [OUTSIDE, INSIDE], ids=["machine", "container"])
def test_more_ranks_than_fit_the_free_memory_are_refused(machine, memory):
    machine(**memory)
    check_local_ranks(8)
    with pytest.raises(ConfigError, match="--ranks 9 on a machine for 8") as refused:
        check_local_ranks(9)
    assert "memory are free" in refused.value.why


def test_one_rank_is_never_refused(machine):
    machine(free=0)
    check_local_ranks(1)
