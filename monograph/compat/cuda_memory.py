"""Memory that torch's CUDA libraries hold beside its allocator's tensors."""

import torch


def free_matmul_workspaces() -> None:
    """Give back cuBLAS's workspaces: torch keeps one of 32 MiB for every stream that ever ran a matmul."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


_highest: dict[torch.device, int] = {}
"""Peaks before the last `begin_peak`."""


def begin_peak(device: torch.device) -> None:
    """Measure the allocator's peak anew; `highest_allocated` knows of the one before."""
    _highest[device] = highest_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)


def highest_allocated(device: torch.device) -> int:
    """The most that was ever allocated in this process."""
    return max(_highest.get(device, 0), torch.cuda.max_memory_allocated(device))


def cached_bytes(device: torch.device, stream: torch.cuda.Stream) -> int:
    """Bytes that torch's allocator holds and would give to this stream, apart from the pools of CUDA graphs: its free
    blocks, and whole segments of other streams, which it gives back when nothing else is left."""
    segments = [each for each in torch.cuda.memory_snapshot() if each["device"] == device.index]
    shared = [each for each in segments if tuple(each["segment_pool_id"]) == (0, 0)]
    usable = [each for each in shared if each["stream"] == stream.cuda_stream or not each["active_size"]]
    return sum(each["total_size"] - each["active_size"] for each in usable)
