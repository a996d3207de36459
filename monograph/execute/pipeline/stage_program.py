"""The programs of one stage: each reads the live values of a micro-batch that it needs, and stores what others need.

Live values are a dict: the micro-batch, the carry, saved activations. A program takes a value out the
moment it is needed, and for the last time, so that nothing lives longer than in a step that is one graph.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from monograph.execute.bind_device import bind_device
from monograph.execute.bounded_sizes import bound_sizes
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.failed_node import failures_located
from monograph.execute.pipeline.partition import StagePart, StageParts, partition
from monograph.execute.program import PER_CALL_INPUTS, OutputCallback, OutputHook, check_fits
from monograph.graph.cast_weights import find_cached_casts
from monograph.graph.inputs import StepInputs
from monograph.graph.query import is_compute
from monograph.graph.signature import InputKind, OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import find_tag, set_tag
from monograph.parallel.pipeline.actions import Action, ActionKind

LiveValues = dict[str, Any]
HANDED_ON = {OutputKind.CARRY: "out/carry/", OutputKind.CARRY_GRADIENT: "out/carry_gradient/"}


def name_input(kind: InputKind, name: str) -> str:
    """The key of an input among live values."""
    return f"in/{kind.value}/{name}"


def read_value(live: LiveValues, key: str) -> Any:
    """A value that is needed again."""
    return live[key]


def take_value(live: LiveValues, key: str) -> Any:
    """A value that is not needed again."""
    return live.pop(key)


def store_value(live: LiveValues, key: str, value: Any) -> None:
    """Leave a value for another program."""
    live[key] = value


class StageProgram:
    """What a rank runs for one stage: forward, and backward whole or in two halves."""

    def __init__(
        self,
        graph: StepGraph,
        inputs: StepInputs,
        take: OutputCallback,
        weight_cache: CastWeightCache | None,
        *,
        is_split: bool,
        is_training: bool = True,
    ) -> None:
        self.specs = {name_input(spec.kind, spec.name): spec for spec in graph.inputs if spec.kind in PER_CALL_INPUTS}
        parts = partition(graph)
        self.parts = parts
        chosen = {ActionKind.FORWARD: parts.forward}
        if is_training and is_split:
            chosen |= {ActionKind.INPUT_GRAD: parts.input_grad, ActionKind.WEIGHT_GRAD: parts.weight_grad}
        if is_training:
            chosen |= {ActionKind.BACKWARD: parts.backward}
        builder = _PartBuilder(graph, inputs, take, weight_cache, parts)
        self.modules = {kind: builder.build(part, kind) for kind, part in chosen.items()}

    def fill(self, live: LiveValues, kind: InputKind, values: Mapping[str, Tensor]) -> None:
        """Add inputs to live values; checked against what was captured."""
        for name, value in values.items():
            key = name_input(kind, name)
            if key in self.specs:
                live[key] = check_fits(self.specs[key], value)

    def run(self, part: Action, live: LiveValues) -> None:
        """Run one part on a micro-batch."""
        module = self.modules[part.kind]
        with failures_located(module.graph), torch.no_grad():
            module(live)

    def close(self) -> None:
        """Release everything a graph may hold, before its process groups are gone."""
        self.modules = {}


class _PartBuilder:
    """Copies parts of a stage's graph into modules that work on live values."""

    def __init__(
        self,
        graph: StepGraph,
        inputs: StepInputs,
        take: OutputCallback,
        weight_cache: CastWeightCache | None,
        parts: StageParts,
    ) -> None:
        self.graph, self.inputs, self.take, self.cache, self.parts = graph, inputs, take, weight_cache, parts
        self.placeholders = dict(zip(graph.placeholders, graph.inputs, strict=True))
        self.casts = dict(find_cached_casts(graph))
        self.wanted: dict[Node, list[int]] = {}
        for index, node in enumerate(graph.results):
            if node is not None:
                self.wanted.setdefault(node, []).append(index)

    def build(self, part: StagePart, kind: ActionKind) -> GraphModule:
        """One part as a module of one argument, the live values."""
        root = nn.Module()
        for name, child in self.graph.module.named_children():
            root.add_module(name, child)
        for name, buffer in self.graph.module.named_buffers(recurse=False):
            root.register_buffer(name, buffer)
        inside = Graph()
        live = inside.placeholder("live")
        copies: dict[Node, Node] = {}

        def find(node: Node) -> Node:
            if node not in copies:
                copies[node] = self.fetch(node, part, kind, root, inside, live)
            return copies[node]

        for node in part.nodes:
            for each in node.all_input_nodes:
                find(each)
            copies[node] = inside.node_copy(node, copies.__getitem__)
            if node in part.keeps:
                inside.call_function(store_value, (live, node.name, copies[node]))
            for index in self.wanted.get(node, ()):
                self.hand_over(index, copies[node], root, inside, live)
        if kind is ActionKind.FORWARD:
            for node in self.wanted:  # an input or a constant that is handed on as it is
                if not is_compute(node):
                    for index in self.wanted[node]:
                        self.hand_over(index, find(node), root, inside, live)
        inside.output(())
        bound_sizes(inside, self.graph.max_size)
        bind_device(inside, self.inputs.coords.device)
        for node in inside.nodes:
            if find_tag(node) is None:
                set_tag(node, find_tag(self.graph.placeholders[0]))  # type: ignore[arg-type]
        return GraphModule(root, inside)

    def fetch(self, node: Node, part: StagePart, kind: ActionKind, root: nn.Module, inside: Graph, live: Node) -> Node:
        """Where a part gets a value from that it does not compute."""
        if node in self.casts:
            return self.hold(node.name, self.cast_of(node), root, inside)
        if node.op == "placeholder":
            spec = self.placeholders[node]
            if spec.kind not in PER_CALL_INPUTS:
                return self.hold(node.name, check_fits(spec, self.inputs.get(spec)), root, inside)
            is_last = self.is_last_reader(node, kind)
            return inside.call_function(take_value if is_last else read_value, (live, name_input(spec.kind, spec.name)))
        if node.op == "get_attr":
            return inside.node_copy(node)
        return inside.call_function(take_value if node in part.last_reads else read_value, (live, node.name))

    def cast_of(self, node: Node) -> Tensor:
        cast = self.casts[node]
        if self.cache is not None:
            return self.cache.get(cast)
        raise AssertionError("a stage with cached casts has a cache")

    def is_last_reader(self, node: Node, kind: ActionKind) -> bool:
        """Whether no later part of the micro-batch reads an input."""
        later = {
            ActionKind.FORWARD: (self.parts.backward,),
            ActionKind.INPUT_GRAD: (self.parts.weight_grad,),
        }.get(kind, ())
        return not any(node in each.all_input_nodes for part in later for each in part.nodes)

    def hold(self, name: str, value: Tensor, root: nn.Module, inside: Graph) -> Node:
        """A tensor that stays the same object: a parameter, which a cache may still move, a buffer, a cast weight."""
        root.register_buffer(f"held_{name}", value, persistent=False)
        return inside.get_attr(f"held_{name}")

    def hand_over(self, index: int, node: Node, root: nn.Module, inside: Graph, live: Node) -> None:
        """Give an output to its taker, or store it among the live values for another stage."""
        spec = self.graph.outputs[index]
        if spec.kind in HANDED_ON:
            inside.call_function(store_value, (live, f"{HANDED_ON[spec.kind]}{spec.name}", node))
        else:
            root.add_module(f"take_{index}", OutputHook(spec, self.take))
            inside.call_module(f"take_{index}", (node,))
