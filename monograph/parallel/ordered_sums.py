"""Sums over ranks in rank order, for gloo: a sum then does not depend on where in the buffer a value lies.

gloo adds in an order that follows from a value's position and from the size of the whole buffer. With three ranks or
more that order decides the last bit, so merging two collectives into one, or another layout of the same gradients,
would change it. Two ranks need nothing: a + b is b + a.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

MIN_RANKS = 3
"""From so many ranks on, the order of a sum decides its last bit."""


class StartedSum(dist.Work):
    """A collective that moves the terms; they are added when its result is waited for."""

    def __init__(self, moved: Any, add: Callable[[], None]) -> None:
        super().__init__()
        self._moved, self._add = moved, add

    def wait(self, *timeout: Any) -> bool:
        self._moved.wait(*timeout)
        add, self._add = self._add, _nothing
        add()
        return True


class OrderedSums(dist.ProcessGroup):
    """Serves the functional collectives with a gloo group; floating-point sums are added by the receiver."""

    def __init__(self, gloo: dist.ProcessGroup) -> None:
        super().__init__(gloo.rank(), gloo.size())  # type: ignore[call-arg]
        self.gloo = gloo

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """How torch calls what moves the bytes."""
        return "gloo"

    def _allgather_base(self, output: Tensor, part: Tensor, *rest: Any) -> Any:
        return self.gloo._allgather_base(output, part, *rest)

    def allgather_into_tensor_coalesced(self, outputs: list[Tensor], parts: list[Tensor], *rest: Any) -> Any:
        """What torch asks for when it means one tensor."""
        return self.gloo.allgather_into_tensor_coalesced(outputs, parts, *rest)

    def alltoall_base(self, output: Tensor, rows: Tensor, *rest: Any) -> Any:
        return self.gloo.alltoall_base(output, rows, *rest)

    def _reduce_scatter_base(self, output: Tensor, whole: Tensor, *rest: Any) -> Any:
        if not _is_ordered_sum(whole, *rest):
            return self.gloo._reduce_scatter_base(output, whole, *rest)
        terms = torch.empty(self.size(), output.numel(), dtype=whole.dtype)
        moved = self.gloo.alltoall_base(terms, whole.contiguous().view_as(terms), [], [])
        return StartedSum(moved, lambda: _add_into(output, terms))

    def reduce_scatter_tensor_coalesced(self, outputs: list[Tensor], wholes: list[Tensor], *rest: Any) -> Any:
        """What torch asks for when it means one tensor."""
        (output,), (whole,) = outputs, wholes
        return self._reduce_scatter_base(output, whole, *rest)

    def allreduce(self, tensors: Any, *rest: Any) -> Any:
        (tensor,) = tensors
        if not _is_ordered_sum(tensor, *rest):
            return self.gloo.allreduce(tensors, *rest)
        terms = torch.empty(self.size(), tensor.numel(), dtype=tensor.dtype)
        moved = self.gloo._allgather_base(terms.view(-1), tensor.reshape(-1))
        return StartedSum(moved, lambda: _add_into(tensor, terms))


def _is_ordered_sum(value: Tensor, *options: Any) -> bool:
    """Whether rounding could show the order: sums of whole numbers and maxima have none."""
    return value.is_floating_point() and (not options or options[0].reduceOp == dist.ReduceOp.SUM)


def _add_into(output: Tensor, terms: Tensor) -> None:
    """The sum of the rows, from the first rank's to the last one's."""
    total = terms[0]
    for term in terms[1:]:
        total += term
    output.copy_(total.view_as(output))


def _nothing() -> None:
    """What is left to add after the first wait."""
