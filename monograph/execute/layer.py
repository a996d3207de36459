"""Per-layer compile: every block, dense or MoE, becomes one graph, with no break allowed and no setting left behind.

Blocks are compiled in place, FSDP2's hooks stay outside, and equal blocks share one compiled graph. Torch's settings
are changed only while a block runs: a flag left on in the process would change how other people's code compiles.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from monograph.compat.modules import (
    compile_function,
    compile_in_place,
    find_backend,
    find_raised,
    is_capture_error,
    is_compiled_in_place,
    is_recompile_limit,
    scoped_dynamo,
)
from monograph.errors import ConfigError, MonographError
from monograph.execute.config import CompileConfig
from monograph.kernels.catalog import register_decompositions
from monograph.models.model import Model, call_module

INDUCTOR = "inductor"
MOST_GRAPHS = 64
"""Graphs of one kind of block, over all models of the process and all shapes they have seen. Torch would stop at 8."""
_TORCH = str(Path(torch.__file__).parent)


class CompileFailed(MonographError):
    """Something that was to be compiled cannot be captured as a whole."""


class CountingBackend:
    """A compiler that counts the graphs it was given: what users watch to see recompilation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.graphs = 0
        self._compile = find_backend(name)
        if name == INDUCTOR:
            register_decompositions()

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        self.graphs += 1
        return self._compile(graph, inputs, **options)


class LayerCall:
    """Runs one unit; blocks run under the settings their data-dependent sizes need, everything else as ever."""

    def __init__(self, names: Mapping[nn.Module, str]) -> None:
        self.names = names

    def __call__(self, unit: nn.Module, *args: Any) -> Any:
        return self.run(call_module, unit, *args)

    def run(self, function: Callable[..., Any], unit: nn.Module, *args: Any) -> Any:
        """Run a function that calls a unit, such as one that gives it its parameters."""
        if unit not in self.names:
            return function(unit, *args)
        with scoped_dynamo(capture_scalar_outputs=True, recompile_limit=MOST_GRAPHS), explained(self.names[unit]):
            return function(unit, *args)


def compile_layers(
    model: Model, config: CompileConfig, runner: Callable[..., Any] | None
) -> tuple[CountingBackend | None, LayerCall]:
    """Compile in place what layer mode compiles; in eager mode nothing is.

    With `runner`, activation checkpointing, blocks run under it: inside of their graphs where they are compiled.
    """
    if runner is not None:
        for block in model.blocks().values():
            block.forward = functools.partial(runner, block.forward)
    if config.mode == "eager":
        return None, LayerCall({})
    backend = CountingBackend(config.backend)
    if "loss" in config.components:
        compile_loss(model, backend)
    return backend, compile_blocks(model, backend) if "model" in config.components else LayerCall({})


def compile_blocks(model: Model, backend: CountingBackend) -> LayerCall:
    """Compile every block in place. Doing it twice changes nothing."""
    blocks = model.blocks()
    for block in blocks.values():
        if not is_compiled_in_place(block):
            compile_in_place(block, backend)
    return LayerCall({block: path for path, block in blocks.items()})


def compile_loss(model: Model, backend: CountingBackend) -> None:
    """Compile the loss of the last unit in place of the plain one. Doing it twice changes nothing."""
    path, head = list(model.unit_modules().items())[-1]
    loss = getattr(head, "loss", None)
    if loss is None:
        raise ConfigError(
            f"compile.components has loss, and {path} has no `loss`",
            why="what computes the loss of the last unit is compiled by itself",
            do="--compile.components model",
        )
    if not isinstance(loss, CompiledLoss):
        head.loss = CompiledLoss(loss, backend)


class CompiledLoss(nn.Module):
    """The loss as one compiled graph."""

    def __init__(self, loss: Callable[..., Any], backend: CountingBackend) -> None:
        super().__init__()
        self.plain = loss
        self._compiled = compile_function(loss, backend)

    def forward(self, *args: Any) -> Any:
        with scoped_dynamo(recompile_limit=MOST_GRAPHS), explained("the loss"):
            return self._compiled(*args)


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Say in our words what torch's compiler refuses inside; every other error passes through untouched."""
    try:
        yield
    except Exception as error:
        if is_recompile_limit(error):
            raise CompileFailed(
                f"{what} was compiled {MOST_GRAPHS} times and needs one more graph",
                why="every new batch size or sequence length compiles once more, and something keeps changing",
                do="give all batches one shape; with TORCH_LOGS=recompiles in the environment torch names the change",
            ) from None
        if is_capture_error(error):
            raise explain(error, what) from None
        raise


def explain(error: Exception, what: str) -> CompileFailed:
    """Torch's refusal in a few lines: the reason, and the line of code it comes from."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = find_raised(error) or (lines[0] if lines else type(error).__name__)
    details = [line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")]
    frame = find_user_frame(lines)
    return CompileFailed(
        f"{what} cannot be captured as one graph: {reason}",
        why="; ".join([f"at {frame}"] * bool(frame) + details[:1]),
        do="change that line, or --compile.mode eager",
    )


def find_user_frame(lines: list[str]) -> str:
    """The last line of code in a report that is not torch's own: what a user can change."""
    frames = [line for line in lines if line.startswith('File "')]
    own = [frame for frame in frames if not frame.startswith(f'File "{_TORCH}')]
    return (own or frames or [""])[-1]
