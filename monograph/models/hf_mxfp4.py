"""MXFP4 weights of Hugging Face checkpoints: 4-bit values in blocks of 32 that share one power of two.

A weight [experts, in, out] is stored as `NAME_blocks`, uint8 [experts, out, in / 32, 16] with two values a byte, the
lower half first, and `NAME_scales`, uint8 [experts, out, in / 32]: exponents, 127 stands for 1. It is read as bf16,
which holds every such value exactly.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from monograph.models.hf_fp8 import Stored

BLOCKS, SCALES = "_blocks", "_scales"
"""Suffixes of the two tensors that one weight is stored as."""
BLOCK_BYTES, BLOCK_VALUES = 16, 32
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""What the lower three bits of a value say; the highest bit is the sign."""
BIAS, NOT_A_NUMBER = 127, 255


def find_packed(names: Iterable[str]) -> list[str]:
    """The weights that are stored as blocks and scales, or as one of the two."""
    found = {name.removesuffix(suffix) for name in names for suffix in (BLOCKS, SCALES) if name.endswith(suffix)}
    return sorted(found)


def describe_packed(name: str, blocks: Stored | None, scales: Stored | None) -> Stored | str:
    """The weight that blocks and scales stand for, or why they stand for none."""
    for suffix, stored in ((BLOCKS, blocks), (SCALES, scales)):
        if stored is None:
            return f"{name}{suffix} is missing"
        if stored.dtype != torch.uint8:
            return f"{name}{suffix} is stored in {str(stored.dtype).removeprefix('torch.')}, not in uint8"
    assert blocks is not None and scales is not None
    if len(blocks.shape) != 4 or blocks.shape[-1] != BLOCK_BYTES:
        return f"{name}{BLOCKS} has shape {list(blocks.shape)} instead of [experts, out, blocks, {BLOCK_BYTES}]"
    if scales.shape != blocks.shape[:-1]:
        return f"{name}{SCALES} has shape {list(scales.shape)} instead of {list(blocks.shape[:-1])}"
    experts, out, count, _ = blocks.shape
    return Stored(torch.bfloat16, (experts, count * BLOCK_VALUES, out))


def find_bad_exponents(name: str, scales: Tensor) -> str:
    """Why the scales of weight `name` cannot be right; empty when they can."""
    return f"{name}{SCALES} holds {NOT_A_NUMBER}, which is not an exponent" if (scales == NOT_A_NUMBER).any() else ""


def unpack(blocks: Tensor, scales: Tensor) -> Tensor:
    """The weight [experts, in, out] in bf16, an expert at a time."""
    experts, out, count, _ = blocks.shape
    found = torch.empty((experts, count * BLOCK_VALUES, out), dtype=torch.bfloat16)
    table = torch.tensor([*VALUES, *(-value for value in VALUES)])
    for expert in range(experts):
        halves = torch.stack((blocks[expert] & 15, blocks[expert] >> 4), dim=-1)
        values = table[halves.int()].flatten(-2)
        factors = torch.exp2(scales[expert].to(torch.float64) - BIAS).to(torch.float32)
        found[expert] = (values * factors.unsqueeze(-1)).flatten(-2).t().to(torch.bfloat16)
    return found


def read_packed(source: Mapping[str, Tensor], name: str) -> Tensor | str:
    """The weight that `source` holds as blocks and scales, or why it cannot be read."""
    blocks, scales = source.get(name + BLOCKS), source.get(name + SCALES)
    problem = describe_packed(name, _describe(blocks), _describe(scales))
    if isinstance(problem, str):
        return problem
    assert blocks is not None and scales is not None
    return find_bad_exponents(name, scales) or unpack(blocks, scales)


def _describe(tensor: Tensor | None) -> Stored | None:
    return None if tensor is None else Stored(tensor.dtype, tuple(tensor.shape))
