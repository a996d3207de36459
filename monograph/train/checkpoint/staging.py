"""Copies of the state in host memory, so that it can be written while training changes the original."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:  # torch.distributed.checkpoint takes a second
    from torch.distributed.checkpoint.metadata import MetadataIndex


class Staging:
    """Host buffers that are filled at every save and used again at the next one."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def stage(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy this rank's elements of every tensor; when this returns, the originals may change."""
        self._buffers = {name: self._find_buffer(name, find_local(tensor)) for name, tensor in tensors.items()}
        devices = set()
        for name, tensor in tensors.items():
            local = find_local(tensor)
            self._buffers[name].copy_(local, non_blocking=True)
            devices.add(local.device)
        for device in devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        return dict(self._buffers)

    def _find_buffer(self, name: str, local: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(name)
        if buffer is not None and (buffer.shape, buffer.dtype) == (local.shape, local.dtype):
            return buffer
        return torch.empty(local.shape, dtype=local.dtype, pin_memory=local.device.type == "cuda")


def find_shard(tensors: Mapping[str, Any], index: "MetadataIndex") -> torch.Tensor:
    """The part of a tensor that a plan's index means: a placed shard (or DTensor) knows its own chunk."""
    tensor = tensors[index.fqn]
    shard_of = getattr(tensor, "__get_tensor_shard__", None)
    return shard_of(index) if shard_of is not None else tensor


def find_local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that lies on this rank."""
    to_local = getattr(tensor, "to_local", None)
    return (to_local() if to_local is not None else tensor).detach()
