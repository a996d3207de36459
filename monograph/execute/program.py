"""A graph made ready to run: inputs bound by name, outputs handed on the moment they exist, everything else freed.

The graph itself stays as it is; a program is a copy of it that gives each output to its taker instead of returning
all of them at the end, so that a gradient is added up and forgotten while backward still runs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from monograph.errors import ConfigError
from monograph.execute.bind_device import bind_device
from monograph.execute.bounded_sizes import bound_sizes
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.failed_node import failures_located
from monograph.execute.float8_weights import Float8Weights, ReadCast, StoreCast
from monograph.execute.outputs import LossBuffer
from monograph.graph.cast_weights import find_cached_casts, is_cached_cast
from monograph.graph.inputs import StepInputs
from monograph.graph.pieces import IN_PLACE, find_in_place
from monograph.graph.signature import PARAMETERS, InputKind, InputSpec, OutputSpec
from monograph.graph.step_graph import StepGraph

OutputCallback = Callable[[OutputSpec, Tensor], None]
PER_CALL_INPUTS = (InputKind.BATCH, InputKind.SCALAR, InputKind.CARRY, InputKind.CARRY_GRADIENT)
"""Inputs that come from outside with every call; all others stay where they are."""


class OutputHook(nn.Module):
    """Hands one output on."""

    def __init__(self, spec: OutputSpec, take: OutputCallback) -> None:
        super().__init__()
        self.spec, self.take = spec, take

    def forward(self, value: Tensor) -> None:
        self.take(self.spec, value)


class StaticInputs:
    """The inputs at addresses that never change: state as it is, the batch copied into buffers of its own."""

    def __init__(self, specs: tuple[InputSpec, ...], inputs: StepInputs) -> None:
        self.specs = specs
        self.values = [
            torch.empty_like(inputs.get(spec)) if spec.kind in PER_CALL_INPUTS else check_fits(spec, inputs.get(spec))
            for spec in specs
        ]

    def fill(self, inputs: StepInputs) -> list[Tensor]:
        """Copy what comes from outside into its buffers; everything is checked against what was captured."""
        for spec, buffer in zip(self.specs, self.values, strict=True):
            if spec.kind in PER_CALL_INPUTS:
                buffer.copy_(check_fits(spec, inputs.get(spec)))
        return self.values


def check_fits(spec: InputSpec, value: Tensor) -> Tensor:
    """The value, or an error that names the input and both shapes."""
    try:
        spec.check(value)
    except ValueError as error:
        raise ConfigError(
            "this batch does not fit the captured step",
            why=str(error),
            do="keep shapes fixed: training.seq_len and training.local_batch_size are part of the graph",
        ) from None
    return value


class Program:
    """Runs a graph; `outputs` gets every output as soon as it is computed."""

    def __init__(
        self, graph: StepGraph, outputs: LossBuffer, inputs: StepInputs, weight_cache: CastWeightCache | None = None
    ) -> None:
        self.inputs, self.outputs = StaticInputs(graph.inputs, inputs), outputs
        pairs = zip(graph.inputs, self.inputs.values, strict=True)
        self.float8 = Float8Weights(graph, [value for spec, value in pairs if spec.kind in PARAMETERS])
        parts = outputs.take, weight_cache, self.float8, inputs.coords.device
        module = lower(graph, *parts, casts=True)
        later = lower(graph, *parts, casts=False) if self.float8.skipped else module
        self.modules = {True: module, False: later}
        """The graph, by whether weights are cast to float8 in it or were by an earlier micro-batch."""

    def run(self, inputs: StepInputs) -> None:
        """One call; nothing is recorded for autograd, because the graph holds its own backward."""
        values = self.inputs.fill(inputs)
        module = self.modules[self.float8.must_cast(is_first=self.outputs.gradients.is_empty)]
        with failures_located(module.graph), torch.no_grad():
            module(*values)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Nothing is recorded here."""
        yield

    def find_missing_memory(self) -> int:
        """Nothing keeps memory from one call to the next."""
        return 0

    def close(self) -> None:
        """Release everything a graph may hold, before its process groups are gone."""
        self.modules = dict.fromkeys(self.modules, GraphModule(nn.Module(), Graph()))
        self.float8.values.clear()
        self.inputs.values = []


def lower(
    graph: StepGraph,
    take: OutputCallback,
    weight_cache: CastWeightCache | None = None,
    float8: Float8Weights | None = None,
    device: torch.device | None = None,
    *,
    casts: bool = True,
) -> GraphModule:
    """The graph as a module without results: each goes to its taker right after it was computed, and ops that can run
    in place do.

    What changes only with the weights is read from the cast weight cache, if there is one. Casts of weights to float8
    leave their results in `float8`, or, without `casts`, are read from there. Tensors that it makes are on `device`.
    """
    root = nn.Module()
    for name, child in graph.module.named_children():
        root.add_module(name, child)
    for name, buffer in graph.module.named_buffers(recurse=False):
        root.register_buffer(name, buffer)
    wanted: dict[Node, list[int]] = {}
    for index, node in enumerate(graph.results):
        if node is not None:
            wanted.setdefault(node, []).append(index)
    inside = Graph()
    copies: dict[Node, Node] = {}
    constants = dict(find_cached_casts(graph)) if weight_cache is not None else {}
    in_place = find_in_place(graph.module.graph)
    for node in graph.nodes:
        if node.op == "output" or (weight_cache is not None and is_cached_cast(node) and node not in constants):
            continue
        is_stored = float8 is not None and float8.is_read(node)
        if float8 is not None and not casts and node in float8.skipped:
            if is_stored:
                root.add_module(f"read_{node.name}", ReadCast(float8.values, node.name))
                copies[node] = inside.call_module(f"read_{node.name}")
            continue
        if weight_cache is not None and node in constants:
            root.register_buffer(f"cached_cast_{node.name}", weight_cache.get(constants[node]))
            copies[node] = inside.get_attr(f"cached_cast_{node.name}")
        else:
            copies[node] = inside.node_copy(node, copies.__getitem__)
            if node in in_place:
                copies[node].target = IN_PLACE[node.target]
        if float8 is not None and is_stored:
            root.add_module(f"store_{node.name}", StoreCast(float8.values, node.name))
            inside.call_module(f"store_{node.name}", (copies[node],))
        for index in wanted.get(node, []):
            root.add_module(f"take_{index}", OutputHook(graph.outputs[index], take))
            inside.call_module(f"take_{index}", (copies[node],))
    inside.output(())
    bound_sizes(inside, graph.max_size)
    if device is not None:
        bind_device(inside, device)
    return GraphModule(root, inside)
