"""Run a graph node by node on given inputs, and keep what its nodes compute."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from monograph.execute.bind_device import bind_arguments
from monograph.graph.host_copy import TO_HOST
from monograph.graph.inputs import StepInputs
from monograph.graph.query import is_launch
from monograph.graph.signature import InputKind
from monograph.graph.step_graph import StepGraph

Watch = Callable[[Node, Tensor], None]
_CHANGED = (InputKind.BUFFER, InputKind.BATCH)
"""Inputs that a step may write to: every replay gets copies."""


class Replay(Interpreter):
    """Runs the nodes in order; `watch` sees the tensor that each of them yields."""

    def __init__(self, graph: StepGraph, device: torch.device, watch: Watch | None = None) -> None:
        super().__init__(graph.module)
        self.device, self.watch = device, watch

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """As usual, on the device of this rank."""
        return super().call_function(target, *bind_arguments(target, args, kwargs, self.device))

    def run_node(self, n: Node) -> Any:
        """As usual; what a collective has not finished yet, or a copy to the host, is not looked at."""
        result = super().run_node(n)
        is_ready = n.op not in ("placeholder", "output", "get_attr") and not is_launch(n) and n.target is not TO_HOST
        if self.watch is not None and is_ready and isinstance(result, Tensor):
            self.watch(n, result)
        return result


def replay(graph: StepGraph, inputs: StepInputs, watch: Watch | None = None) -> dict[str, Tensor]:
    """The outputs of a graph by kind and name, in the host's memory; the inputs stay as they are."""
    values = [inputs.get(spec) for spec in graph.inputs]
    given = [v.clone() if spec.kind in _CHANGED else v for spec, v in zip(graph.inputs, values, strict=True)]
    with torch.no_grad():
        results = Replay(graph, inputs.coords.device, watch).run(*given)
    named = zip(graph.outputs, results, strict=True)
    return {f"{spec.kind.value} {spec.name}".strip(): keep(value) for spec, value in named if value is not None}


def replay_all(graph: StepGraph, inputs: StepInputs) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
    """The outputs, and the value of every node by the node's name."""
    found: dict[str, Tensor] = {}
    outputs = replay(graph, inputs, lambda node, value: found.update({node.name: keep(value)}))
    return outputs, found


def keep(value: Tensor) -> Tensor:
    """A copy that nothing writes to any more."""
    return value.detach().to("cpu", copy=True)
