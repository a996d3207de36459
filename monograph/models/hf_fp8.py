"""fp8 weights of Hugging Face checkpoints: float8_e4m3fn with one scale for each block of 128 x 128.

An fp8 weight without the right scales is not an approximation of the weight, it is another weight. So everything about
the two is checked before a weight is used, and what does not fit is refused by the tensor's name.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from monograph.models.hf_reader import HfReader

SCALE_SUFFIX = "_scale_inv"
"""The scales of a weight are stored under the weight's name with this suffix."""
SCALE_BLOCK = 128
FP8_DTYPE = torch.float8_e4m3fn
SCALE_DTYPES = (torch.float32, torch.bfloat16)
WEIGHT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Stored(NamedTuple):
    """What a file says of one tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def check_quantization(given: HfReader | None) -> None:
    """Refuse a `quantization_config` that asks for anything but the fp8 format described above."""
    if given is None or not given.values:
        return
    for key, *served in (
        ("quant_method", "fp8"),
        ("weight_block_size", [SCALE_BLOCK, SCALE_BLOCK]),
        ("activation_scheme", "dynamic"),
        ("fmt", "e4m3"),
        ("scale_fmt", "float", "ue8m0"),
        ("expert_dtype", "fp8"),
        ("modules_to_convert", []),
    ):
        if (key in _NEEDED or given.has(key)) and given.get(key) not in served:
            only = f"only fp8 in blocks of {SCALE_BLOCK} x {SCALE_BLOCK} with one scale each can be read"
            raise given.refuse(key, f"{only}; use a checkpoint in bfloat16")
    for key in _UNCONVERTED:
        if given.has(key) and not _is_names(given.values[key]):
            raise given.refuse(key, "expected a list of modules' names")
    given.ignore("dequantize")
    given.finish()


_NEEDED = ("quant_method", "weight_block_size")
_UNCONVERTED = ("modules_to_not_convert", "ignored_layers")


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def find_unconverted(quantization: dict[str, list[str]] | None) -> tuple[str, ...]:
    """The modules that a checked `quantization_config` leaves in the model's own dtype."""
    return tuple(name for key in _UNCONVERTED for name in (quantization or {}).get(key) or ())


def is_listed(name: str, modules: Iterable[str]) -> bool:
    """Whether a weight belongs to one of these modules: `lm_head`, `model.layers.0`, `mlp.gate`."""
    return any(f".{module}." in f".{name}" for module in modules)


def find_problem(name: str, weight: Stored, scale: Stored | None) -> str:
    """Why a weight cannot be used with the scales beside it; empty when it can."""
    if weight.dtype == FP8_DTYPE:
        if scale is None:
            return f"{name} is stored in {_say(weight.dtype)} without {name}{SCALE_SUFFIX}"
        if len(weight.shape) != 2:
            return f"{name} is stored in {_say(weight.dtype)} and has {len(weight.shape)} dims, not 2"
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
