"""Triton and its language for whole warps, Gluon; where they are not installed, stand-ins that refuse to run.

Only a GPU's torch comes with Triton. Files of kernels take it from here, so that they can be imported like any other
on every machine: without Triton a kernel is declared all the same, and launching it is an error that says why.

Checked with Triton 3.6 (torch 2.11) and without Triton.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from monograph.errors import ConfigError


class MissingTriton:
    """A name of a Triton module that is not installed: has every attribute, and runs nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> "MissingTriton":
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingTriton(f"{self.name}.{name}")

    def jit(self, function: Callable[..., Any] | None = None, **settings: Any) -> Any:
        """Declare a kernel, as @jit or @jit(...)."""
        return self.jit if function is None else MissingTriton(function.__name__)

    def refuse(self, *args: Any, **settings: Any) -> NoReturn:
        """Say what is missing."""
        raise ConfigError(
            f"{self.name} cannot run",
            why="Triton is not installed, and kernels for GPUs are written in it",
            do="install a torch build for GPUs, which comes with Triton, or set --model.kernels plain",
        )

    __call__ = __getitem__ = refuse


try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:
    triton, tl = MissingTriton("triton"), MissingTriton("triton.language")

try:
    from triton.errors import TritonError
except ModuleNotFoundError:

    class TritonError(Exception):  # type: ignore[no-redef]
        """What Triton raises where it is installed: kernels that do not compile, or need more than the GPU has."""


try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
except ImportError:  # not installed, or a build of Triton for other GPUs
    gluon, gl = MissingTriton("gluon"), MissingTriton("gluon.language")
    mbarrier, tma, TensorDescriptor = (MissingTriton(name) for name in ("mbarrier", "tma", "TensorDescriptor"))
    warpgroup_mma, warpgroup_mma_wait = gl.warpgroup_mma, gl.warpgroup_mma_wait

HAS_TRITON = not isinstance(triton, MissingTriton)
"""Whether kernels can run. A constant: torch.compile cannot trace a search for packages."""
