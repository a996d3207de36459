"""Copies to the host's memory and back, as ops a graph can hold: start, and wait when the value is needed.

On a GPU the copies run on streams of their own, from and to pinned memory; a graph orders them by their values alone.
On a CPU they are plain copies, so that a plan can be checked anywhere.
"""

import functools

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("monograph", "DEF")
_LIBRARY.define("to_host(Tensor value) -> Tensor")
_LIBRARY.define("from_host(Tensor value, str device) -> Tensor")
_LIBRARY.define("wait_copy(Tensor(a) value) -> Tensor(a)")


def _like(value: Tensor, device: str) -> Tensor:
    """Memory for a copy with the same strides, also along dimensions of size 1: views of the copy follow from them."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


@functools.cache
def copy_stream(direction: str) -> torch.cuda.Stream:
    """The stream of all copies in one direction."""
    return torch.cuda.Stream()


@torch.library.impl(_LIBRARY, "to_host", "CompositeExplicitAutograd")
def to_host(value: Tensor) -> Tensor:
    """Start copying a value to the host. The device memory is free again once the copy and all readers are done."""
    if not value.is_cuda:
        return _like(value, "cpu").copy_(value)
    stream = copy_stream("out")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        kept = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, pin_memory=True)
        kept.copy_(value, non_blocking=True)
    value.record_stream(stream)
    return kept


@torch.library.impl(_LIBRARY, "from_host", "CompositeExplicitAutograd")
def from_host(value: Tensor, device: str) -> Tensor:
    """Start copying a value back; read the result after `wait_copy` only."""
    if device != "cuda":
        return _like(value, device).copy_(value)
    stream = copy_stream("in")
    back = _like(value, device)
    stream.wait_stream(torch.cuda.current_stream())
    stream.wait_stream(copy_stream("out"))
    with torch.cuda.stream(stream):
        back.copy_(value, non_blocking=True)
    back.record_stream(stream)
    return back


@torch.library.impl(_LIBRARY, "wait_copy", "CompositeExplicitAutograd")
def wait_copy(value: Tensor) -> Tensor:
    """The value, once it is there."""
    if value.is_cuda:
        torch.cuda.current_stream().wait_stream(copy_stream("in"))
    return value


@torch.library.register_fake("monograph::to_host", lib=_LIBRARY)
def _to_host_shape(value: Tensor) -> Tensor:
    return _like(value, "cpu")


@torch.library.register_fake("monograph::from_host", lib=_LIBRARY)
def _from_host_shape(value: Tensor, device: str) -> Tensor:
    return _like(value, device)


@torch.library.register_fake("monograph::wait_copy", lib=_LIBRARY)
def _wait_copy_shape(value: Tensor) -> Tensor:
    return torch.ops.aten.alias.default(value)


TO_HOST = torch.ops.monograph.to_host.default
FROM_HOST = torch.ops.monograph.from_host.default
WAIT_COPY = torch.ops.monograph.wait_copy.default
