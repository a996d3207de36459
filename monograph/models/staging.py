"""The way of drawn values to a GPU: pinned buffers of one thread, filled and copied in turns.

From ordinary memory a copy first goes through a buffer of the driver's, and the thread waits for all of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

BUFFERS = 2
"""Of each thread: while one is copied, the other is filled. Drawing takes far longer than copying."""


class Staging:
    """The buffers of one thread, which must have a stream of its own as its current one."""

    def __init__(self, max_bytes: int) -> None:
        self._buffers = [
            torch.empty(max_bytes, dtype=torch.uint8, device="cpu", pin_memory=True) for _ in range(BUFFERS)
        ]
        self._copied = [torch.cuda.Event() for _ in range(BUFFERS)]
        self._turn = 0

    def find_place(self, target: Tensor) -> Tensor:
        """Pinned memory for the values of `target`, in its shape and dtype; what was copied from there has arrived."""
        self._copied[self._turn].synchronize()  # returns at once before the first copy
        flat = self._buffers[self._turn][: target.numel() * target.element_size()]
        return flat.view(target.dtype).view(target.shape)

    def send(self, place: Tensor, target: Tensor) -> None:
        """Begin to copy the place found last; the next one is in the other buffer."""
        target.copy_(place, non_blocking=True)
        self._copied[self._turn].record()
        self._turn = (self._turn + 1) % BUFFERS


@contextmanager
def staging_on(device: torch.device, max_bytes: int, *, after: torch.cuda.Stream) -> Iterator[Staging]:
    """Buffers for this thread, whose copies begin when `after` is done so far, and have all ended at the end.

    torch keeps freed pinned memory for whoever asks next, so that `BUFFERS * max_bytes` a thread stay taken.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(after)  # something may still use the memory of the targets, or set it to zero
    with torch.cuda.stream(stream):  # sets the thread's device too: every thread starts on the first
        try:
            yield Staging(max_bytes)
        finally:
            stream.synchronize()
