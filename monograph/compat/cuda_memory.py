"""Memory that torch's CUDA libraries hold beside its allocator's tensors."""

import torch


def free_matmul_workspaces() -> None:
    """Give back cuBLAS's workspaces: torch keeps one of 32 MiB for every stream that ever ran a matmul."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
