"""Copies to the host's memory and back, as ops a graph can hold: start, and wait when the value is needed.

On a GPU the copies run on streams of their own, from and to pinned memory; a graph orders them by their values alone.
On a CPU they are plain copies, so that a plan can be checked anywhere.
"""

import functools

import torch
from torch import Tensor

from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor


def _like(value: Tensor, device: str) -> Tensor:
    """Memory for a copy with the same strides, also along dimensions of size 1: views of the copy follow from them."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


@functools.cache
def copy_stream(direction: str, device: torch.device) -> torch.cuda.Stream:
    """The stream of all copies in one direction, from or to one GPU."""
    return torch.cuda.Stream(device)


def to_host(value: Tensor) -> Tensor:
    """Start copying a value to the host. The device memory is free again once the copy and all readers are done."""
    if not value.is_cuda:
        return _like(value, "cpu").copy_(value)
    stream = copy_stream("out", value.device)
    stream.wait_stream(torch.cuda.current_stream(value.device))
    with torch.cuda.stream(stream):
        kept = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, pin_memory=True)
        kept.copy_(value, non_blocking=True)
    value.record_stream(stream)
    return kept


def from_host(value: Tensor, device: str) -> Tensor:
    """Start copying a value back; read the result after `wait_copy` only."""
    back = _like(value, device)
    if not back.is_cuda:
        return back.copy_(value)
    stream = copy_stream("in", back.device)
    stream.wait_stream(torch.cuda.current_stream(back.device))
    stream.wait_stream(copy_stream("out", back.device))
    with torch.cuda.stream(stream):
        back.copy_(value, non_blocking=True)
    back.record_stream(stream)
    return back


def wait_copy(value: Tensor) -> Tensor:
    """The value, once it is there."""
    if value.is_cuda:
        torch.cuda.current_stream(value.device).wait_stream(copy_stream("in", value.device))
    return value


def _make_example() -> Tensor:
    return example_tensor(3, 5).t()


TO_HOST = custom_op(
    "to_host(Tensor value) -> Tensor",
    reference=to_host,
    fake=lambda value: _like(value, "cpu"),
    examples=lambda: [(_make_example(),)],
    contiguous=False,
).op
FROM_HOST = custom_op(
    "from_host(Tensor value, str device) -> Tensor",
    reference=from_host,
    fake=_like,
    examples=lambda: [(_make_example(), "cpu")],
    contiguous=False,
).op
WAIT_COPY = custom_op(
    "wait_copy(Tensor(a) value) -> Tensor(a)",
    reference=wait_copy,
    fake=lambda value: torch.ops.aten.alias.default(value),
    examples=lambda: [(_make_example(),)],
    contiguous=False,
).op
