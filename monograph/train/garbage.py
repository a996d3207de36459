"""Python's garbage collector at chosen steps: left alone it strikes each rank at another moment and stalls all."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def controlled_gc(interval: int) -> Iterator[Callable[[int], None]]:
    """Switch automatic collection off and collect every `interval` steps; 0 leaves everything as it was."""
    if not interval:
        yield lambda step: None
        return
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield lambda step: None if step % interval else _collect_young()
    finally:
        if was_enabled:
            gc.enable()


def _collect_young() -> None:
    gc.collect(1)


@contextmanager
def paused_gc() -> Iterator[None]:
    """No collection while many objects are made that stay: a capture takes a tenth less time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
