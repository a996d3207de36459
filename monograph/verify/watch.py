"""Records what modules produce while a step runs, so that two runs can be compared module by module."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from monograph.models.model import Model
from monograph.models.router import Choice, Router
from monograph.train.config import TrainerConfig

_OUTPUT, _GRADIENT, _CHOICE = "output", "gradient", "choice"


class ModuleRecording:
    """By module path, in forward order, one entry per micro-batch: what came out, and the gradient that came back."""

    def __init__(self, first: str) -> None:
        self.first = first
        """The path of the unit that runs first: a micro-batch begins with it."""
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
        if path == self.first:
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
        if not isinstance(stream, Tensor):
            return
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

    def __init__(self, first: str) -> None:
        super().__init__(first)
        self.found: dict[str, Tensor] = {}

    def add(self, kind: str, path: str, value: Tensor) -> None:
        self.found[f"{kind} {path}"] = value


def can_record(config: TrainerConfig) -> bool:
    """Whether module outputs can be compared: each module runs on the whole micro-batch, and is not compiled.

    A CUDA graph that was asked for is verified as it is, without further outputs; so are the stages of a pipeline.
    """
    if config.parallelism.pipeline_parallel_degree > 1:
        return False
    if config.compile.mode == "graph" and (config.compile.artifact or config.compile.cuda_graph == "require"):
        return False
    return config.compile.mode != "layer" and not config.compile.expert_overlap.is_on


@contextmanager
def traced(model: Model) -> Iterator[dict[str, Tensor]]:
    """What modules put out while a step is captured, by kind and path."""
    recording = TracedRecording(model.units()[0].path)
    with _watched(model, recording):
        yield recording.found


@contextmanager
def recorded(model: Model, *, is_open: bool = True) -> Iterator[ModuleRecording]:
    """Record every block with its parts, what runs before the blocks, and the routers; nothing if not open."""
    recording = ModuleRecording(model.units()[0].path)
    with _watched(model, recording) if is_open else nullcontext():
        yield recording


@contextmanager
def _watched(model: Model, recording: ModuleRecording) -> Iterator[None]:
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


def watched_modules(model: Model) -> list[tuple[str, nn.Module]]:
    """The units up to the last block, the parts of each block, and the routers in them.

    What comes after the last block is compared by its loss.
    """
    units = model.units()
    last = max((number for number, unit in enumerate(units) if unit.is_block), default=-1)
    found: list[tuple[str, nn.Module]] = []
    for unit in units[: last + 1]:
        module = model.get_submodule(unit.path)
        for name, part in module.named_children() if unit.is_block else ():
            path = f"{unit.path}.{name}"
            found += [(f"{path}.{inner}", each) for inner, each in part.named_modules() if isinstance(each, Router)]
            found.append((path, part))
        found.append((unit.path, module))
    return found
