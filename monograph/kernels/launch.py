"""Launching a kernel, or building it for later: a step that is written down takes its kernels along."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from monograph.compat.triton import TritonError, triton

_built: ContextVar[list[Any] | None] = ContextVar("built", default=None)
_THREADS = 8
"""That build kernels side by side: most of it is C++ and other programs, which let other threads run."""


@contextmanager
def only_built(*, ignore_errors: bool = False) -> Iterator[None]:
    """Inside, kernels are built (or found where Triton keeps them), several at a time, but not run; tensors need
    no memory. At the end all of them are loaded, with what launches them, for which Triton calls a C compiler.

    With `ignore_errors`, a kernel that cannot be built or loaded here raises when it is launched, and not before."""
    found: list[Any] = []
    token = _built.set(found)
    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            with triton.AsyncCompileMode(pool, ignore_errors=ignore_errors):
                yield
        finally:
            _built.reset(token)
        device = torch.cuda.current_device()

        def load(built: Any) -> None:
            try:
                kernel = built.result() if isinstance(built, triton.FutureKernel) else built
                with torch.cuda.device(device):  # every thread starts on the first
                    getattr(kernel, "run", None)  # asking for it does the work
            except (TritonError, RuntimeError):
                if not ignore_errors:
                    raise

        list(pool.map(load, found))


def is_only_built() -> bool:
    """Whether kernels are built and nothing runs: tensors may have no values."""
    return _built.get() is not None


def call(function: Callable[..., Any], *args: Any, **settings: Any) -> None:
    """What torch computes in place between two launches; nothing while kernels are only built."""
    if not is_only_built():
        function(*args, **settings)


def find_device(args: Sequence[Any]) -> torch.device:
    """Return the device of a kernel's tensors, or of what the copy engine's descriptors point to. For tensors without
    memory, from which kernels are only built, it is the GPU that this thread uses."""
    tensors = (getattr(arg, "base", arg) for arg in args)
    device = next((tensor.device for tensor in tensors if isinstance(tensor, Tensor)), torch.device("cpu"))
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "meta" else device


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one, on which Triton launches; entering nothing where it already is costs least."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return nullcontext()
    return torch.cuda.device(device)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **settings: Any) -> None:
    """Run a kernel of Triton's over a grid."""
    built = _built.get()
    if built is None:
        with on_device(find_device(args)):
            kernel[grid](*args, **settings)
        return
    words = [arg.dtype if isinstance(arg, Tensor) else arg for arg in args]
    built.append(kernel.warmup(*words, grid=grid, **settings))
