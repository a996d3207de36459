"""Collectives of a rank that is the only one of its group: copies, made at once by the thread that asks.

gloo would make the same copies on threads of its own. Most groups of a small run have one rank, so those threads were
most of the run's threads, and torch 2.13 crashed in one of them now and then (in malloc, under all_gather).
"""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from monograph.parallel.host_staged import FinishedWork


class LoneGroup(dist.ProcessGroup):
    """Serves the functional collectives of a group of one rank."""

    def __init__(self) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """How torch calls the backend of the groups beside this one."""
        return "gloo"

    def _allgather_base(self, output: Tensor, part: Tensor, *_options: Any) -> dist.Work:
        return _copy(output, part)

    def _reduce_scatter_base(self, output: Tensor, whole: Tensor, *_options: Any) -> dist.Work:
        return _copy(output, whole)

    def alltoall_base(self, output: Tensor, rows: Tensor, *_splits: Any) -> dist.Work:
        return _copy(output, rows)

    def allreduce(self, _tensors: Any, *_options: Any) -> dist.Work:
        """The sum, the mean and the maximum of one term are that term."""
        return FinishedWork()

    def allgather_into_tensor_coalesced(self, outputs: list[Tensor], parts: list[Tensor], *_options: Any) -> dist.Work:
        """What torch asks for when it means one tensor."""
        (output,), (part,) = outputs, parts
        return _copy(output, part)

    def reduce_scatter_tensor_coalesced(self, outputs: list[Tensor], wholes: list[Tensor], *_options: Any) -> dist.Work:
        """What torch asks for when it means one tensor."""
        (output,), (whole,) = outputs, wholes
        return _copy(output, whole)


def _copy(output: Tensor, given: Tensor) -> dist.Work:
    output.copy_(given.view_as(output))
    return FinishedWork()
