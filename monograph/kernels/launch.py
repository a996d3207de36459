"""Launching a kernel, or building it for later: a step that is written down takes its kernels along."""

import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

_built: ContextVar[list[Any] | None] = ContextVar("built", default=None)
_THREADS = 8
"""That build kernels side by side: most of it is C++, which lets other threads run."""


@contextmanager
def only_built() -> Iterator[None]:
    """Inside, kernels are built (or found where Triton keeps them), several at a time, but not run; tensors may be
    fake. At the end all of them are loaded."""
    triton: Any = importlib.import_module("triton")
    found: list[Any] = []
    token = _built.set(found)
    try:
        with ThreadPoolExecutor(_THREADS) as pool, triton.AsyncCompileMode(pool):
            yield
    finally:
        _built.reset(token)
    for each in found:
        kernel = each.result() if isinstance(each, triton.FutureKernel) else each
        getattr(kernel, "run", None)  # asking for it loads the kernel and makes what launches it


def call(function: Callable[..., Any], *args: Any, **settings: Any) -> None:
    """What torch computes in place between two launches; nothing while kernels are only built."""
    if _built.get() is None:
        function(*args, **settings)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **settings: Any) -> None:
    """Run a kernel of Triton's over a grid."""
    built = _built.get()
    if built is None:
        kernel[grid](*args, **settings)
        return
    words = [arg.dtype if isinstance(arg, Tensor) else arg for arg in args]
    built.append(kernel.warmup(*words, grid=grid, **settings))
