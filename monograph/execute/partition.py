"""A captured step cut in two: a forward graph and a backward graph, joined again by autograd.

For those who want something of their own between the two: the loss comes out of the forward graph as an ordinary
tensor, may be scaled or added to others, and its gradient starts the backward graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from monograph.errors import MonographError
from monograph.execute.bounded_sizes import bound_sizes
from monograph.execute.program import StaticInputs
from monograph.graph.inputs import StepInputs
from monograph.graph.query import is_backward, is_compute
from monograph.graph.signature import OutputKind
from monograph.graph.step_graph import StepGraph


class CannotSplit(MonographError):
    """A graph that does not fall into two halves."""


@dataclass(frozen=True)
class PartitionedGraphs:
    """The two graphs. Both read the step's inputs; what forward saves, backward reads after them."""

    forward: GraphModule
    """(inputs) -> loss, metrics by name, saved values."""
    backward: GraphModule
    """(inputs, saved values, gradient of the loss) -> gradients in the order of `slots`."""
    slots: tuple[str, ...]
    saved: tuple[Node, ...]


def split(graph: StepGraph) -> PartitionedGraphs:
    """Cut a step between forward and backward; what backward reads of forward becomes a result of the one half and an
    input of the other."""
    results = dict(zip(graph.outputs, graph.results, strict=True))
    (loss,) = [node for spec, node in results.items() if spec.kind is OutputKind.LOSS]
    metrics = {spec.name: node for spec, node in results.items() if spec.kind is OutputKind.METRIC}
    gradients = {spec.name: node for spec, node in results.items() if spec.kind is OutputKind.GRADIENT}
    seed = find_seed(graph)
    forward = [node for node in graph.nodes if is_compute(node) and not is_backward(node)]
    backward = [node for node in graph.nodes if is_compute(node) and is_backward(node) and node is not seed]
    inside = set(backward) | {seed}
    saved = [node for node in forward if any(user in inside and user is not seed for user in node.users)]
    first = _copy(
        graph,
        forward,
        [],
        lambda copies: (
            copies[loss],
            {name: copies[node] for name, node in metrics.items()},
            [copies[node] for node in saved],
        ),
    )
    second = _copy(graph, backward, [*saved, seed], lambda copies: [copies[node] for node in gradients.values()])
    return PartitionedGraphs(first, second, tuple(gradients), tuple(saved))


def find_seed(graph: StepGraph) -> Node:
    """Where backward starts: the node that makes the loss's own gradient, one."""
    ones = [node for node in graph.nodes if node.target is torch.ops.aten.ones_like.default and is_backward(node)]
    if len(ones) != 1:
        raise CannotSplit(
            f"the step has {len(ones)} nodes at which backward could start",
            why="a step is cut where the loss's own gradient is made",
            do="--compile.partition none",
        )
    return ones[0]


def _copy(graph: StepGraph, nodes: Sequence[Node], more_inputs: Sequence[Node], results: Any) -> GraphModule:
    inside = Graph()
    copies: dict[Node, Node] = {}
    for node in graph.placeholders:
        copies[node] = inside.placeholder(node.name)
    for index, node in enumerate(more_inputs):
        copies[node] = inside.placeholder(f"saved_{index}")
    for node in graph.nodes:
        if node.op == "get_attr":
            copies[node] = inside.node_copy(node)
    for node in nodes:
        copies[node] = inside.node_copy(node, copies.__getitem__)
    inside.output(results(copies))
    bound_sizes(inside, graph.max_size)
    return GraphModule(graph.module, inside)


class Joined(torch.autograd.Function):
    """Forward runs the one half, backward the other."""

    @staticmethod
    def forward(
        ctx: Any, halves: PartitionedGraphs, values: list[Tensor], metrics: dict[str, Tensor], *_parameters: Tensor
    ) -> Tensor:
        loss, found, saved = halves.forward(*values)
        metrics |= found
        ctx.halves, ctx.values, ctx.saved = halves, values, saved
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        saved, ctx.saved = ctx.saved, None
        gradients = ctx.halves.backward(*ctx.values, *saved, grads[0])
        return None, None, None, *gradients


class SplitProgram:
    """Runs the two halves of a step with autograd between them."""

    def __init__(self, graph: StepGraph, parameters: Mapping[str, Tensor], inputs: StepInputs) -> None:
        self.halves = split(graph)
        self.inputs = StaticInputs(graph.inputs, inputs)
        self.parameters = [parameters[slot] for slot in self.halves.slots]

    def loss(self, inputs: StepInputs) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, ready for `backward`, and the metrics."""
        metrics: dict[str, Tensor] = {}
        with torch.enable_grad():
            loss = Joined.apply(self.halves, self.inputs.fill(inputs), metrics, *self.parameters)
        return loss, metrics

    def close(self) -> None:
        """Let go of both halves."""
        empty = GraphModule(nn.Module(), Graph())
        self.halves = PartitionedGraphs(empty, empty, (), ())
        self.inputs.values = []
