"""Looks at collectives as they are started: who sends which bytes, and how long a rank waits for the others.

An observed group stands in front of another one under the same logical name, for a few steps. What is computed does
not change.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from monograph.parallel.host_staged import FinishedWork

GRADIENTS = "gradients"
"""The name of a rank's gradients among digests."""
WORDS_AT_ONCE = 1 << 22
"""A digest takes 8 bytes of memory for each of so many values at a time."""


Received = TypeVar("Received")


class CollectiveObserver(Protocol):
    """What is done with each collective that this rank starts."""

    def start(self, group: str, name: str, sent: Sequence[Tensor], run: Callable[[], Any]) -> Any:
        """Start the collective by calling `run`, and return its work."""
        ...

    def wait(self, run: Callable[[], Received]) -> Received:
        """Wait for what another pipeline rank sends by calling `run`."""
        ...


class ObservedGroup(dist.ProcessGroup):
    """Serves the functional collectives with another group, by way of an observer."""

    def __init__(self, logical_name: str, served_by: dist.ProcessGroup, observer: CollectiveObserver) -> None:
        super().__init__(served_by.rank(), served_by.size())  # type: ignore[call-arg]
        self.logical_name, self.served_by, self.observer = logical_name, served_by, observer

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """How torch calls what moves the bytes."""
        return str(self.served_by.name())

    def _observe(self, name: str, sent: Sequence[Tensor], run: Callable[[], Any]) -> Any:
        return self.observer.start(self.logical_name, name, sent, run)

    def _allgather_base(self, output: Tensor, part: Tensor, *rest: Any) -> Any:
        return self._observe("all_gather", [part], lambda: self.served_by._allgather_base(output, part, *rest))

    def _reduce_scatter_base(self, output: Tensor, whole: Tensor, *rest: Any) -> Any:
        run = self.served_by._reduce_scatter_base
        return self._observe("reduce_scatter", [whole], lambda: run(output, whole, *rest))

    def alltoall_base(self, output: Tensor, rows: Tensor, *rest: Any) -> Any:
        return self._observe("all_to_all", [rows], lambda: self.served_by.alltoall_base(output, rows, *rest))

    def allreduce(self, tensors: Any, *rest: Any) -> Any:
        return self._observe("all_reduce", list(tensors), lambda: self.served_by.allreduce(tensors, *rest))

    def allgather_into_tensor_coalesced(self, outputs: list[Tensor], parts: list[Tensor], *rest: Any) -> Any:
        run = self.served_by.allgather_into_tensor_coalesced
        return self._observe("all_gather", parts, lambda: run(outputs, parts, *rest))

    def reduce_scatter_tensor_coalesced(self, outputs: list[Tensor], wholes: list[Tensor], *rest: Any) -> Any:
        run = self.served_by.reduce_scatter_tensor_coalesced
        return self._observe("reduce_scatter", wholes, lambda: run(outputs, wholes, *rest))


@dataclass(frozen=True)
class SentDigest:
    """What this rank handed to one collective, as a number that changes with every bit of it."""

    group: str
    name: str
    digest: int
    part: int = 0
    """Which part of the step it was sent in: parts run one after the other, over all ranks."""


@dataclass
class SendDigests:
    """Notes a digest of everything this rank hands to collectives, in the order in which they start."""

    part: int = 0
    """The part of the step that is running."""
    _sums: list[Tensor] = field(default_factory=list)
    _names: list[tuple[str, str, int]] = field(default_factory=list)

    def start(self, group: str, name: str, sent: Sequence[Tensor], run: Callable[[], Any]) -> Any:
        self.note(group, name, sent)
        return run()

    def note(self, group: str, name: str, sent: Sequence[Tensor]) -> None:
        """Add the digest of values that leave this rank in another way."""
        self._names.append((group, name, self.part))
        self._sums.append(digest_bits(sent))

    def wait(self, run: Callable[[], Received]) -> Received:
        """Its sender has noted it."""
        return run()

    def take(self) -> list[SentDigest]:
        """All digests so far; waits for the device."""
        pairs = zip(self._names, self._sums, strict=True)
        found = [SentDigest(group, name, int(value), part) for (group, name, part), value in pairs]
        self._names, self._sums = [], []
        return found


def digest_bits(tensors: Sequence[Tensor]) -> Tensor:
    """A sum over the bits of some tensors, on their device: one changed value always shows, and so does a swap of two.

    Each value is weighed by its position. The sum wraps around, which loses nothing: odd weights are invertible.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensors[0].device)
    for number, tensor in enumerate(tensors):
        for part, words in enumerate(view_as_words(tensor).split(WORDS_AT_ONCE)):
            weights = torch.arange(words.numel(), device=words.device).mul_(2).add_(2 * (number + part) + 1)
            total = total + weights.mul_(words).sum()
    return total


def view_as_words(value: Tensor) -> Tensor:
    """The bits of a tensor as whole numbers of its element size, in one dim."""
    flat = value.detach().contiguous().view(-1)
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat).reshape(-1)
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return flat.view(torch.uint8) if flat.dtype is torch.bool else flat.view(widths[flat.element_size()])


@dataclass
class CollectiveTimer:
    """Adds up the time in which this rank waited for others: each collective ends before the next thing is computed.

    What is left of a step's time is this rank's own work. On ranks that wait for a slow one, that does not grow.
    """

    device: torch.device
    seconds: float = 0.0

    def start(self, group: str, name: str, sent: Sequence[Tensor], run: Callable[[], Any]) -> Any:
        self.wait(lambda: run().wait())
        return FinishedWork()

    def wait(self, run: Callable[[], Received]) -> Received:
        self._finish_device_work()
        begin = time.perf_counter()
        found = run()
        self._finish_device_work()
        self.seconds += time.perf_counter() - begin
        return found

    def _finish_device_work(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
