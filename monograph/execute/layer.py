"""Per-layer compile: every block, dense or MoE, becomes one graph, with no break allowed and no setting left behind.

Blocks are compiled in place, FSDP2's hooks stay outside, and equal blocks share one compiled graph. Torch's settings
are changed only while a block runs: a flag left on in the process would change how other people's code compiles.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from monograph.compat import compile_function, compile_in_place, find_backend, is_capture_error, scoped_dynamo
from monograph.errors import MonographError
from monograph.models.decoder import Block, Decoder


class CompileFailed(MonographError):
    """Something that was to be compiled cannot be captured as a whole."""


class CountingBackend:
    """A compiler that counts the graphs it was given: what users watch to see recompilation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.graphs = 0
        self._compile = find_backend(name)

    def __call__(self, graph: Any, inputs: Any, **options: Any) -> Any:
        self.graphs += 1
        return self._compile(graph, inputs, **options)


class LayerCall:
    """Runs one unit; compiled blocks run under the settings their data-dependent sizes need."""

    def __init__(self, backend: CountingBackend) -> None:
        self.backend = backend

    def __call__(self, unit: nn.Module, *args: Any) -> Any:
        try:
            with scoped_dynamo(capture_scalar_outputs=True):
                return unit(*args)
        except Exception as error:
            raise (explain(error, type(unit).__name__) if is_capture_error(error) else error) from None


def compile_blocks(model: Decoder, backend: CountingBackend) -> LayerCall:
    """Compile every block in place. Doing it twice changes nothing."""
    for block in model.blocks():
        if not is_compiled(block):
            compile_in_place(block, backend)
    return LayerCall(backend)


def compile_loss(model: Decoder, backend: CountingBackend) -> None:
    """Compile the loss in place of the plain one. Doing it twice changes nothing."""
    if not isinstance(model.head.loss, CompiledLoss):
        model.head.loss = CompiledLoss(model.head.loss, backend)


class CompiledLoss(nn.Module):
    """The loss as one compiled graph."""

    def __init__(self, loss: Callable[..., Any], backend: CountingBackend) -> None:
        super().__init__()
        self.plain = loss
        self._compiled = compile_function(loss, backend)

    def forward(self, *args: Any) -> Any:
        try:
            return self._compiled(*args)
        except Exception as error:
            raise (explain(error, "loss") if is_capture_error(error) else error) from None


def is_compiled(block: Block) -> bool:
    """Whether a block was compiled in place already."""
    return block._compiled_call_impl is not None


def explain(error: Exception, what: str) -> CompileFailed:
    """Torch's refusal in two lines: the reason, and the line of code it comes from."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    places = [line for line in lines if line.startswith("File ")]
    reason = lines[0] if lines else type(error).__name__
    return CompileFailed(
        f"{what} cannot be captured as one graph: {reason}",
        why=f"at {places[-1]}" if places else "",
        do="change that line, or --compile.mode eager",
    )
