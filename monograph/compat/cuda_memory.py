"""Memory that torch's CUDA libraries hold beside its allocator's tensors."""

import torch


def free_matmul_workspaces() -> None:
    """Give back cuBLAS's workspaces: torch keeps one of 32 MiB for every stream that ever ran a matmul."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def cached_bytes(device: torch.device) -> int:
    """Bytes that torch's allocator holds for later tensors, apart from the pools of CUDA graphs."""
    segments = torch.cuda.memory_snapshot()
    shared = [each for each in segments if each["device"] == device.index and each["segment_pool_id"] == (0, 0)]
    return sum(each["total_size"] - each["active_size"] for each in shared)
