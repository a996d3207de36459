"""Collectives of CUDA tensors over gloo, by way of host memory: for ranks that share a GPU.

NCCL before 2.30 refuses two ranks on one GPU, and gloo's own all_gather of CUDA tensors crashes torch 2.11. Which
collective a graph holds must not depend on that, so the detour is behind the process group.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class FinishedWork(dist.Work):
    """A collective that has finished."""

    def wait(self, *_timeout: Any) -> bool:
        return True


class HostStagedGroup(dist.ProcessGroup):
    """Serves the functional collectives with a gloo group over host copies of their tensors, one after the other."""

    def __init__(self, gloo: dist.ProcessGroup) -> None:
        super().__init__(gloo.rank(), gloo.size())  # type: ignore[call-arg]
        self.gloo = gloo

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """How torch calls what moves the bytes."""
        return "gloo"

    def _allgather_base(self, output: Tensor, part: Tensor, *rest: Any) -> dist.Work:
        return _stage(output, part, lambda to, given: self.gloo._allgather_base(to, given, *rest))

    def _reduce_scatter_base(self, output: Tensor, whole: Tensor, *rest: Any) -> dist.Work:
        return _stage(output, whole, lambda to, given: self.gloo._reduce_scatter_base(to, given, *rest))

    def alltoall_base(self, output: Tensor, rows: Tensor, *rest: Any) -> dist.Work:
        return _stage(output, rows, lambda to, given: self.gloo.alltoall_base(to, given, *rest))

    def allreduce(self, tensors: Any, *rest: Any) -> dist.Work:
        (tensor,) = tensors
        staged = tensor.cpu()
        self.gloo.allreduce([staged], *rest).wait()
        tensor.copy_(staged)
        return FinishedWork()

    def allgather_into_tensor_coalesced(self, outputs: list[Tensor], parts: list[Tensor], *_rest: Any) -> dist.Work:
        """What torch asks for when it means one tensor."""
        (output,), (part,) = outputs, parts
        return self._allgather_base(output, part)

    def reduce_scatter_tensor_coalesced(self, outputs: list[Tensor], wholes: list[Tensor], *rest: Any) -> dist.Work:
        """What torch asks for when it means one tensor."""
        (output,), (whole,) = outputs, wholes
        return self._reduce_scatter_base(output, whole, *rest)


def _stage(output: Tensor, given: Tensor, run: Callable[[Tensor, Tensor], Any]) -> dist.Work:
    """Run a collective from a host copy of `given` into host memory, and copy the result to `output`."""
    staged = torch.empty(output.shape, dtype=output.dtype)
    run(staged, given.cpu().contiguous()).wait()
    output.copy_(staged)
    return FinishedWork()
