"""Weights in float8 that the first micro-batch of an update casts, for all of its micro-batches."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.fx import Node

from monograph.compat.modules import version_of
from monograph.graph.cast_weights import find_float8_only, is_cached_float8
from monograph.graph.signature import OutputKind
from monograph.graph.step_graph import StepGraph


class Float8Weights:
    """Numbers and scales of weights, by the names of the nodes that yield them (pass cache_float8_weights).

    The program of an update's first micro-batch casts and leaves the results here; the program of the others reads
    them. Both are parts of CUDA graphs like everything else: the results stay in memory of the first recording, and
    nothing is launched between an update and the next step.
    """

    def __init__(self, graph: StepGraph, parameters: Sequence[Tensor]) -> None:
        is_training = any(spec.kind is OutputKind.GRADIENT for spec in graph.outputs)
        self.skipped = find_float8_only(graph) if is_training else set()
        """What only the first micro-batch computes; nothing of an evaluation, whose every batch casts for itself."""
        self.values: dict[str, Tensor] = {}
        self._parameters, self._versions = parameters, [version_of(each) for each in parameters]

    def is_read(self, node: Node) -> bool:
        """Whether later micro-batches read a node's value from here."""
        return node in self.skipped and is_cached_float8(node) and not self.skipped.issuperset(node.users)

    def must_cast(self, *, is_first: bool) -> bool:
        """Whether the next micro-batch casts: the first of an update, and all that follow after something else than an
        update has changed weights, which torch's version counters tell."""
        versions = [version_of(each) for each in self._parameters] if self.skipped else []
        if is_first:
            self._versions = versions
            self.values.clear()
        return is_first or versions != self._versions

    def restore(self, values: Mapping[str, Tensor]) -> None:
        """Read these again: a recording has written them."""
        self.values.update(values)


class StoreCast(nn.Module):
    """Leaves a value for later micro-batches."""

    def __init__(self, values: dict[str, Tensor], name: str) -> None:
        super().__init__()
        self.values, self.name = values, name

    def forward(self, value: Tensor) -> None:
        self.values[self.name] = value


class ReadCast(nn.Module):
    """Yields the value that the first micro-batch left."""

    def __init__(self, values: dict[str, Tensor], name: str) -> None:
        super().__init__()
        self.values, self.name = values, name

    def forward(self) -> Tensor:
        return self.values[self.name]
