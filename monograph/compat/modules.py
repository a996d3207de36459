"""torch.compile: in place, without graph breaks, with settings that end with the block that set them."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from monograph.compat.compiled_code import keep_compiled_code_private


def is_capture_error(error: Exception) -> bool:
    """Whether dynamo says that a frame cannot become one graph.

    dynamo is reached through torch's attribute, which imports it on first use: eager runs never pay for it.
    """
    errors = torch._dynamo.exc
    return isinstance(error, errors.Unsupported | errors.UserError | errors.TorchRuntimeError)


def is_recompile_limit(error: Exception) -> bool:
    """Whether dynamo refuses to compile a frame once more."""
    return isinstance(error, torch._dynamo.exc.FailOnRecompileLimitHit)


def find_raised(error: Exception) -> str:
    """What the captured code itself raised, when that is why its capture ended."""
    cause = error.__cause__
    return str(cause) if isinstance(cause, torch._dynamo.exc.ObservedException) else ""


def find_backend(name: str) -> Any:
    """The compiler registered under a name."""
    return torch._dynamo.backends.registry.lookup_backend(name)


def compile_in_place(module: nn.Module, backend: Any) -> None:
    """Compile a module's forward as one graph with static shapes; hooks on the module itself stay outside."""
    keep_compiled_code_private()
    module.compile(fullgraph=True, dynamic=False, backend=backend)


def is_compiled_in_place(module: nn.Module) -> bool:
    """Whether `compile_in_place` was here already."""
    return module._compiled_call_impl is not None


@contextmanager
def compiled_calls_in(module: nn.Module, around: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Inside, every call of a module that was compiled in place happens within `around`: hooks would be compiled."""
    compiled: Any = module._compiled_call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        with around():
            return compiled(*args, **kwargs)

    module._compiled_call_impl = call
    try:
        yield
    finally:
        module._compiled_call_impl = compiled


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written in place, by whatever view of it; writes through `.data` do not count."""
    return tensor._version


def compile_function(function: Callable[..., Any], backend: Any, *, is_dynamic: bool = False) -> Callable[..., Any]:
    """A function as one compiled graph, for the sizes of its first call or for all."""
    keep_compiled_code_private()
    return torch.compile(function, fullgraph=True, dynamic=is_dynamic, backend=backend)


def scoped_dynamo(**settings: Any) -> AbstractContextManager[None]:
    """Change dynamo's settings inside the block only."""
    return torch._dynamo.config.patch(**settings)


@contextmanager
def bypass_dynamo_disable(function: Any) -> Iterator[None]:
    """Inside, a function that torch hides from its compiler is called as it is.

    To hide it torch imports the compiler when the function is first called, which takes a second, also where nothing is
    ever compiled. Not around anything that is.
    """
    plain, mark = getattr(function, "__wrapped__", None), "__dynamo_disable"
    is_ours = plain is not None and not hasattr(plain, mark)
    if is_ours:
        setattr(plain, mark, plain)
    try:
        yield
    finally:
        if is_ours:
            delattr(plain, mark)


def make_optimizer_step(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """One of torch's optimizers' own update, without what is wrapped around it for its compiler and for hooks.

    The wrapper imports the compiler at the first step, which takes a second, also where nothing is ever compiled.
    """
    plain, name = inspect.unwrap(type(optimizer).step), f"Optimizer.step#{type(optimizer).__name__}.step"

    def step() -> None:
        with torch.no_grad(), torch.autograd.profiler.record_function(name):
            plain(optimizer)

    return step
