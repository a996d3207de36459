"""How many ranks a machine can start. Loads without torch, so that too many are refused before there is one."""

import os
from contextlib import suppress
from pathlib import Path

from monograph.errors import ConfigError

RANKS_PER_CORE = 16
"""Each rank is a process with threads of its own; beyond this they only wait for each other."""
RANK_BYTES = 300 << 20
"""What a rank takes before it has a model: Python, torch, its connections."""
MEMORY = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")


def check_local_ranks(ranks: int) -> None:
    """Refuse more ranks than this machine has cores and memory for: it would stop answering before they all run."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = find_free_bytes()
    limits = [(cores * RANKS_PER_CORE, f"{RANKS_PER_CORE} ranks per core ({cores} cores) are the most that can help")]
    if free is not None:
        size = f"{RANK_BYTES / 1e9:.1f} GB"
        why = f"{free / 1e9:.1f} GB of memory are free, and a rank takes {size} before it has a model"
        limits.append((max(1, free // RANK_BYTES), why))
    most, why = min(limits)
    if ranks > most:
        raise ConfigError(
            f"--ranks {ranks} on a machine for {most}",
            why=why,
            do=f"--ranks {most} or fewer; monograph plan, inspect and precompile look at any mesh and start none",
        )


def find_free_bytes() -> int | None:
    """Memory that new processes can have, by the system and by the container; None where neither says."""
    found = []
    with suppress(OSError, ValueError, StopIteration):
        line = next(each for each in MEMORY.read_text().splitlines() if each.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):  # no container, or one without a limit
        limit = int((CONTAINER / "memory.max").read_text())
        counts = dict(line.split() for line in (CONTAINER / "memory.stat").read_text().splitlines())
        cache = int(counts.get("inactive_file", 0)) + int(counts.get("active_file", 0))  # the kernel gives it back
        found.append(max(0, limit - int((CONTAINER / "memory.current").read_text()) + cache))
    return min(found, default=None)
