"""fp8 weights of Hugging Face checkpoints: float8_e4m3fn with one scale for each block of 128 x 128.

An fp8 weight without the right scales is not an approximation of the weight, it is another weight. So everything about
the two is checked before a weight is used, and what does not fit is refused by the tensor's name.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from monograph.models.hf_quantization import SCALE_BLOCK
from monograph.plurals import counted

SCALE_SUFFIX = "_scale_inv"
"""The scales of a weight are stored under the weight's name with this suffix."""
FP8_DTYPE = torch.float8_e4m3fn
SCALE_DTYPES = (torch.float32, torch.bfloat16)
WEIGHT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Stored(NamedTuple):
    """What a file says of one tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def find_problem(name: str, weight: Stored, scale: Stored | None) -> str:
    """Why a weight cannot be used with the scales beside it; empty when it can."""
    if weight.dtype == FP8_DTYPE:
        if scale is None:
            return f"{name} is stored in {_say(weight.dtype)} without {name}{SCALE_SUFFIX}"
        if len(weight.shape) != 2:
            return f"{name} is stored in {_say(weight.dtype)} and has {counted(len(weight.shape), 'dim')}, not 2"
        blocks = tuple(math.ceil(size / SCALE_BLOCK) for size in weight.shape)
        if scale.shape != blocks:
            return f"{name}{SCALE_SUFFIX} has shape {list(scale.shape)} instead of {list(blocks)}"
        if scale.dtype not in SCALE_DTYPES:
            return f"{name}{SCALE_SUFFIX} is stored in {_say(scale.dtype)}, not in float32 or bfloat16"
        return ""
    if scale is not None:
        return f"{name}{SCALE_SUFFIX} scales {name}, which is stored in {_say(weight.dtype)}"
    if weight.dtype not in WEIGHT_DTYPES:
        return f"{name} is stored in {_say(weight.dtype)}"
    return ""


def find_bad_scales(name: str, scales: Tensor) -> str:
    """Why the values of the scales of weight `name` cannot be right; empty when they can."""
    bad = ~(torch.isfinite(scales) & (scales > 0))
    if not bad.any():
        return ""
    return f"{name}{SCALE_SUFFIX} holds {scales[bad][0].item()}, and a scale is positive and finite"


def scale_blocks(weight: Tensor, scales: Tensor) -> Tensor:
    """An fp8 weight as fp32, each block multiplied by its scale; blocks at the edges may be smaller."""
    rows, columns = weight.shape
    full = scales.float().repeat_interleave(SCALE_BLOCK, 0)[:rows].repeat_interleave(SCALE_BLOCK, 1)[:, :columns]
    return weight.float() * full


def _say(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
