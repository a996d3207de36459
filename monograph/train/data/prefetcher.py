"""Runs an iterator in a background thread and keeps a few items ready, so that the step does not wait for data.

What goes wrong in the thread is raised where the items are taken. Closing or just dropping the feeder ends the thread.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

from monograph.log import get_log

Item = TypeVar("Item")
JOIN_SECONDS = 10.0
"""How long closing waits for a thread that may be inside a network call."""

log = get_log(__name__)


class BoundedQueue(Generic[Item]):
    """What the thread and the feeder share; the thread knows nothing else, so a dropped feeder can be collected."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.items: deque[Item] = deque()
        self.ended = False
        self.error: BaseException | None = None
        self.closing = threading.Event()
        self.changed = threading.Condition()

    def put(self, item: Item) -> bool:
        """Add an item when there is room; False when nobody wants it any more."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.items) < self.depth or self.closing.is_set())
            if self.closing.is_set():
                return False
            self.items.append(item)
            self.changed.notify_all()
            return True

    def take(self) -> Item:
        """The next item, or what ended the thread. Items made before an error are handed out first."""
        with self.changed:
            self.changed.wait_for(lambda: self.items or self.ended or self.closing.is_set())
            if self.closing.is_set():
                raise RuntimeError("the data feeder is closed")
            if self.items:
                item = self.items.popleft()
                self.changed.notify_all()
                return item
        if self.error is not None:
            raise self.error
        raise StopIteration

    def wait(self) -> None:
        """Wait until an item is ready; what ended the thread before its first item is raised here."""
        with self.changed:
            self.changed.wait_for(lambda: self.items or self.ended or self.closing.is_set())
        if self.error is not None and not self.items:
            raise self.error

    def end(self, error: BaseException | None = None) -> None:
        """Called by the thread when it has no more to give."""
        with self.changed:
            self.ended, self.error = True, error
            self.changed.notify_all()

    def close(self) -> None:
        """Wake both sides up for the last time."""
        with self.changed:
            self.closing.set()
            self.items.clear()
            self.changed.notify_all()


def fill(queue: BoundedQueue[Item], make: Callable[[threading.Event], Iterator[Item]]) -> None:
    """The thread's whole life."""
    try:
        for item in make(queue.closing):
            if not queue.put(item):
                break
        queue.end()
    except BaseException as error:  # handed to the consumer, whatever it is
        queue.end(error)


class Prefetcher(Generic[Item]):
    """An iterator whose items are made ahead by a thread. `make` gets an event that is set when it should stop."""

    def __init__(self, make: Callable[[threading.Event], Iterator[Item]], *, depth: int, name: str = "data") -> None:
        self._queue: BoundedQueue[Item] = BoundedQueue(depth)
        self._thread = threading.Thread(target=fill, args=(self._queue, make), name=name, daemon=True)
        self._finalizer = weakref.finalize(self, self._queue.close)
        self._thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        return self._queue.take()

    def wait(self) -> None:
        """Wait for the first item, so that data that cannot be read is known before anything is started."""
        self._queue.wait()

    def close(self) -> None:
        """End the thread and wait for it. Safe to call again."""
        self._queue.close()
        self._thread.join(JOIN_SECONDS)
        if self._thread.is_alive():
            log.warning("data: the background reader is still inside a call and is left to end by itself")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
