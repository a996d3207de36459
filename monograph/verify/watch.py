"""Records what modules produce while a step runs, so that two runs can be compared module by module."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from monograph.models.decoder import Decoder
from monograph.models.router import Choice, Router
from monograph.train.config import TrainerConfig

_FIRST = "embedding"
_PARTS = ("attention_norm", "attention", "ffn_norm", "feed_forward", "moe")


class ModuleRecording:
    """By module path, in forward order, one entry per micro-batch: what came out, and the gradient that came back."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[Tensor]] = {}
        self.gradients: dict[str, list[Tensor]] = {}
        """Of the outputs, not of parameters."""
        self.choices: dict[str, list[Tensor]] = {}
        """The experts each router chose."""
        self._running: list[str] = []
        self._reached = ""
        """The last module whose output's gradient is known; empty while forward runs."""

    def enter(self, path: str) -> None:
        """A module begins."""
        if path == _FIRST:
            self._running, self._reached = [], ""
        self._running.append(path)

    def leave(self, path: str, result: Any) -> None:
        """A module is done: keep its result, unless backward is only computing it once more."""
        self._running.pop()
        if self._reached:
            return
        if isinstance(result, Choice):
            self.choices.setdefault(path, []).append(result.experts.detach().cpu())
            return
        stream = result[0] if isinstance(result, tuple) else result
        self.outputs.setdefault(path, []).append(stream.detach().float().cpu())
        if stream.requires_grad:
            stream.register_hook(lambda gradient: self._keep_gradient(path, gradient))

    def _keep_gradient(self, path: str, gradient: Tensor) -> None:
        self._reached = path
        self.gradients.setdefault(path, []).append(gradient.detach().float().cpu())

    def where(self) -> str:
        """What is going on, for the report of a step that fails."""
        if self._running:
            return f"in {self._running[-1]}"
        return f"in the backward of {self._reached}" if self._reached else "after the last block"


def can_record(config: TrainerConfig) -> bool:
    """Whether modules run one by one, each on the whole micro-batch: not in a graph, and not chunk by chunk."""
    return config.compile.mode == "eager" and not config.compile.expert_overlap.is_on


@contextmanager
def recorded(model: Decoder, *, is_open: bool = True) -> Iterator[ModuleRecording]:
    """Record the embedding, every block with its parts, and the routers while the block runs; nothing if not open."""
    recording = ModuleRecording()
    handles = []
    for path, module in watched_modules(model) if is_open else []:
        handles += [
            module.register_forward_pre_hook(lambda _m, _a, path=path: recording.enter(path)),
            module.register_forward_hook(lambda _m, _a, result, path=path: recording.leave(path, result)),
        ]
    try:
        yield recording
    finally:
        for handle in handles:
            handle.remove()


def watched_modules(model: Decoder) -> list[tuple[str, nn.Module]]:
    """The modules whose output is the stream, and the routers."""
    found: list[tuple[str, nn.Module]] = [(_FIRST, model.embedding)]
    for index, block in enumerate(model.layers):
        path = f"layers.{index}"
        for part in _PARTS:
            module = getattr(block, part)
            if module is None:
                continue
            found += [(f"{path}.{part}.{n}", m) for n, m in module.named_modules() if isinstance(m, Router)]
            found.append((f"{path}.{part}", module))
        found.append((path, block))
    return found
