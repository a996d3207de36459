"""Everything in fp64: what a step rounds in bf16 or fp32 is computed without rounding that could hide a fault."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from monograph.compat.dispatch import TorchDispatchMode, map_leaves
from monograph.kernels.custom_op import CUSTOM_OPS

WIDE = torch.float64
NARROW = frozenset((torch.float32, torch.bfloat16, torch.float16))


def widen(value: Any) -> Any:
    """fp64 in place of a narrower dtype, and a tensor of one in fp64; anything else as it is."""
    if isinstance(value, torch.dtype):
        return WIDE if value in NARROW else value
    if isinstance(value, Tensor) and value.dtype in NARROW:
        return value.to(WIDE)
    return value


class WideMode(TorchDispatchMode):
    """Ops that are asked for a narrow dtype get fp64; custom ops compute by their references."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args = tuple([widen_dtype(value) for value in args])  # no op takes a list of dtypes
        kwargs = {name: widen_dtype(value) for name, value in (kwargs or {}).items()}
        if func in CUSTOM_OPS:
            with self:
                return run_reference(func, args)
        return func(*args, **kwargs)


def widen_dtype(value: Any) -> Any:
    """fp64 in place of a narrower dtype; tensors stay."""
    return WIDE if isinstance(value, torch.dtype) and value in NARROW else value


def run_reference(op: Any, args: tuple[Any, ...]) -> Any:
    """A custom op by its reference, with results as a kernel would write them."""
    return map_leaves(
        lambda value: value.contiguous() if isinstance(value, Tensor) else value, CUSTOM_OPS[op].reference(*args)
    )


@contextmanager
def in_fp64() -> Iterator[None]:
    """Inside, tensors without a dtype of their own are fp64, and casts to narrower ones change nothing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(WIDE)
    try:
        with WideMode():
            yield
    finally:
        torch.set_default_dtype(before)
