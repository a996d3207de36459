"""Tensors to try custom ops with."""

import torch
from torch import Tensor


def example_tensor(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normally distributed values on the CPU, the same for the same seed; torch's own generator is left alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)
