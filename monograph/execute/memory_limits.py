"""How much memory there is: on the device of a run, and on its host."""

import os
from contextlib import suppress
from pathlib import Path

import torch

from monograph.graph.verify_read import MemoryLimits

_CGROUP = Path("/sys/fs/cgroup/memory.max")
"""Where a container's limit is, if it has one."""


def find_memory_limits(device: torch.device) -> MemoryLimits:
    """The memory of the host and, on a GPU, of the device."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no container, or one without a limit
        host = min(host, int(_CGROUP.read_text()))
    return MemoryLimits(torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else host, host)
