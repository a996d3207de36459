"""Weights that hold NaN or infinities are refused by name while they are read.

One reduction per piece that is read: torch.aminmax takes 3 to 7 GB/s on one core, several times as fast as the copy and
the hash of the same bytes, and allocates nothing.
"""

from pathlib import Path

import torch
from torch import Tensor

from monograph.errors import CheckpointError


class NonFiniteError(CheckpointError):
    """A tensor that no model can compute with."""


def find_non_finite(tensor: Tensor, dtype: torch.dtype | None = None) -> str:
    """`NaN`, `inf`, or a number too large for `dtype`, if the tensor holds one; empty if all of it is finite there."""
    dtype = dtype or tensor.dtype
    if not tensor.numel() or not tensor.is_floating_point() or not dtype.is_floating_point:
        return ""
    low, high = (value.item() for value in torch.aminmax(tensor if tensor.dtype.itemsize > 1 else tensor.float()))
    limit = torch.finfo(dtype).max
    if low >= -limit and high <= limit:
        return ""
    worst = low if low != low or -low > high else high
    name = "NaN" if worst != worst else f"{worst:g}"
    is_stored = name in ("NaN", "inf", "-inf")
    return name if is_stored else f"{name}, which {str(dtype).removeprefix('torch.')} cannot hold"


def check_finite(
    tensor: Tensor, name: str, path: Path, dtype: torch.dtype | None = None, *, may_be_infinite: bool = False
) -> None:
    """Refuse a tensor of `path` that holds NaN or infinities, or will where it is kept in `dtype`.

    `may_be_infinite` is for buffers: the mask of a model of one's own holds -inf.
    """
    found = find_non_finite(tensor, dtype)
    if found and not (may_be_infinite and found in ("inf", "-inf")):
        is_narrow = "cannot hold" in found
        raise NonFiniteError(
            f"{name} in {path} holds {found}",
            why="a model with such a weight computes nothing but NaN",
            do="choose bfloat16 or float32" if is_narrow else "download it again, or use a checkpoint from before that",
        )
