"""Launching a kernel, or building it for later: a step that is written down takes its kernels along."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

_is_building: ContextVar[bool] = ContextVar("is_building", default=False)


@contextmanager
def only_built() -> Iterator[None]:
    """Inside, kernels are built (or found where Triton keeps them) and loaded, but not run; tensors may be fake."""
    token = _is_building.set(True)
    try:
        yield
    finally:
        _is_building.reset(token)


def call(function: Callable[..., Any], *args: Any, **settings: Any) -> None:
    """What torch computes in place between two launches; nothing while kernels are only built."""
    if not _is_building.get():
        function(*args, **settings)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **settings: Any) -> None:
    """Run a kernel of Triton's over a grid."""
    if not _is_building.get():
        kernel[grid](*args, **settings)
        return
    words = [arg.dtype if isinstance(arg, Tensor) else arg for arg in args]
    built = kernel.warmup(*words, grid=grid, **settings)
    getattr(built, "run", None)  # asking for it loads the kernel and makes what launches it
