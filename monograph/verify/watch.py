"""Records what modules produce while a step runs, so that two runs can be compared module by module."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from monograph.models.decoder import Decoder
from monograph.models.router import Choice, Router
from monograph.train.config import TrainerConfig

_FIRST = "embedding"
_OUTPUT, _GRADIENT, _CHOICE = "output", "gradient", "choice"
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
            self.add(_CHOICE, path, result.experts)
            return
        stream = result[0] if isinstance(result, tuple) else result
        self.add(_OUTPUT, path, stream)
        if stream.requires_grad:
            stream.register_hook(lambda gradient: self._keep_gradient(path, gradient))

    def add(self, kind: str, path: str, value: Tensor) -> None:
        """One value of one micro-batch."""
        kept = {_OUTPUT: self.outputs, _GRADIENT: self.gradients, _CHOICE: self.choices}[kind]
        value = value.detach().cpu()
        kept.setdefault(path, []).append(value.float() if value.is_floating_point() else value)

    def add_outputs(self, recorded: Mapping[str, Sequence[Tensor]]) -> None:
        """What a captured step put out, by the names that `traced` gave."""
        for name, values in recorded.items():
            kind, _, path = name.partition(" ")
            for value in values:
                self.add(kind, path, value)

    def _keep_gradient(self, path: str, gradient: Tensor) -> None:
        self._reached = path
        self.add(_GRADIENT, path, gradient)

    def where(self) -> str:
        """What is going on, for the report of a step that fails; empty where modules do not run one by one."""
        if self._running:
            return f"in {self._running[-1]}"
        if self._reached:
            return f"in the backward of {self._reached}"
        return "after the last block" if self.outputs else ""


class TracedRecording(ModuleRecording):
    """The same values as outputs of a captured step: tensors by name, taken while the step is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Tensor] = {}

    def add(self, kind: str, path: str, value: Tensor) -> None:
        self.found[f"{kind} {path}"] = value


def can_record(config: TrainerConfig) -> bool:
    """Whether module outputs can be compared: each module runs on the whole micro-batch, and is not compiled.

    A CUDA graph that was asked for is verified as it is, without further outputs.
    """
    if config.compile.mode == "graph" and (config.compile.artifact or config.compile.cuda_graph == "require"):
        return False
    return config.compile.mode != "layer" and not config.compile.expert_overlap.is_on


@contextmanager
def traced(model: Decoder) -> Iterator[dict[str, Tensor]]:
    """What modules put out while a step is captured, by kind and path."""
    recording = TracedRecording()
    with _watched(model, recording):
        yield recording.found


@contextmanager
def recorded(model: Decoder, *, is_open: bool = True) -> Iterator[ModuleRecording]:
    """Record the embedding, every block with its parts, and the routers while the block runs; nothing if not open."""
    recording = ModuleRecording()
    with _watched(model, recording) if is_open else nullcontext():
        yield recording


@contextmanager
def _watched(model: Decoder, recording: ModuleRecording) -> Iterator[None]:
    handles = []
    for path, module in watched_modules(model):
        handles += [
            module.register_forward_pre_hook(lambda _m, _a, path=path: recording.enter(path)),
            module.register_forward_hook(lambda _m, _a, result, path=path: recording.leave(path, result)),
        ]
    try:
        yield
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
