"""The rules of every graph, checked after every pass, so that an error names the pass that broke one.

    check_graph(graph, facts)

Everything here is linear in the number of nodes, and values are recomputed only where something changed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from monograph.annotate import Direction
from monograph.graph.changes import Changes
from monograph.graph.facts import Facts
from monograph.graph.gradient_paths import reads_shape_only
from monograph.graph.invariants import check_properties, find_gradients
from monograph.graph.query import is_mutation, is_random, is_size, value_of
from monograph.graph.refuse import GraphError, broken
from monograph.graph.signature import InputKind, OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, has_tag, tag_of
from monograph.graph.tensor_meta import TensorMeta
from monograph.graph.verify_collectives import check_collectives
from monograph.graph.verify_values import check_symbols, check_values
from monograph.plurals import counted

__all__ = ["GraphError", "check_graph"]
FROM_BATCH = (InputKind.BATCH, InputKind.CARRY, InputKind.CARRY_GRADIENT)


def check_graph(graph: StepGraph, facts: Facts, changes: Changes | None = None) -> None:
    """Refuse a graph that breaks a rule; the error names the node.

    With the `changes` since the graph kept all rules, those about single nodes and what they read are checked where
    something changed.
    """
    nodes = graph.nodes
    near = nodes if changes is None else [node for node in nodes if node in changes.touched]
    check_order(nodes)
    check_inputs(graph, nodes)
    check_tags(near)
    check_purity(graph, near)
    check_outputs(graph, nodes, facts)
    check_collectives(graph, nodes, facts)
    check_values(graph, near)
    check_symbols(nodes)
    check_properties(graph, nodes, facts)


def check_order(nodes: Sequence[Node]) -> None:
    """Every value is made before it is read."""
    made: set[Node] = set()
    for node in nodes:
        for each in node.all_input_nodes:
            if each not in made:
                raise broken(node, f"%{each.name} is read before it is made", why="nodes run in the order they stand")
        made.add(node)


def check_inputs(graph: StepGraph, nodes: Sequence[Node]) -> None:
    """Inputs come first and are what the schema says: they are bound by it."""
    placeholders = graph.placeholders
    if len(placeholders) != len(graph.inputs):
        raise GraphError(
            f"the graph has {counted(len(placeholders), 'input')} and names for {len(graph.inputs)}",
            why="inputs are bound by name, each to its place",
            do="passes keep the inputs as they are",
        )
    for node, spec in zip(nodes, graph.inputs, strict=False):
        if node.op != "placeholder":
            raise broken(node, "a node stands before an input", why="inputs come first, in the order of their names")
        value = value_of(node)
        if tuple(value.shape) != spec.shape or value.dtype != spec.dtype:
            raise broken(
                node,
                f"the input {spec.kind}/{spec.name} is {value.dtype}{list(value.shape)}",
                why=f"its name stands for {spec.dtype}{list(spec.shape)}",
            )


def check_tags(nodes: Sequence[Node]) -> None:
    """Every node says where it comes from, and forward does not wait for backward."""
    for node in nodes:
        tag: Any = tag_of(node) if has_tag(node) else None
        if not isinstance(tag, Tag):
            raise broken(node, "a node has no tag", why="passes decide by tags", do="make nodes with graph/edit.py")
        if not tag.made_by:
            raise broken(node, "a node does not say which pass made it", why="errors and reports name that pass")
        if tag.direction is Direction.BACKWARD or node.op == "output":
            continue
        for each in node.all_input_nodes:
            if tag_of(each).direction is Direction.BACKWARD:
                raise broken(
                    node,
                    f"a forward node reads %{each.name}, which belongs to backward",
                    why="what is kept, offloaded or recomputed is decided by where forward ends",
                )


def check_purity(graph: StepGraph, nodes: Sequence[Node]) -> None:
    """Values never change, are the same on every run, and belong to no particular device or rank."""
    devices = {spec.device for spec in graph.inputs} | {"cpu"}
    for node in nodes:
        if node.op != "call_function":
            continue
        if is_mutation(node):
            raise broken(
                node,
                "a node writes into its argument",
                why="values never change in a graph, so that nodes can be moved, copied and shared",
                do="use the op that returns a new value",
            )
        if is_random(node):
            raise broken(
                node,
                "a node draws random numbers",
                why="a second run or a copy would draw others",
                do="draw them with mg.random_uniform or mg.Dropout, from a seed and positions",
            )
        for value in (*node.args, *node.kwargs.values()):
            if isinstance(value, torch.device) and (value.index is not None or value.type not in devices):
                raise broken(
                    node,
                    f"a node names the device {value}",
                    why=f"ranks share the graph but not their devices; this one was captured for {sorted(devices)}",
                    do="name the kind of device only",
                )


def check_outputs(graph: StepGraph, nodes: Sequence[Node], facts: Facts) -> None:
    """A scalar loss, and one gradient for every parameter: its own, and computed from the batch."""
    ends = [node for node in nodes if node.op == "output"]
    if len(ends) != 1 or nodes[-1] is not ends[0]:
        raise GraphError(
            "the last node of the graph is not its only output",
            why="what stands behind the output never runs",
            do="put new nodes before what reads them",
        )
    if len(graph.results) != len(graph.outputs):
        raise GraphError(
            f"the graph returns {counted(len(graph.results), 'value')} and has names for {len(graph.outputs)}",
            why="results are handed out by name, each from its place",
            do="passes keep the outputs as they are",
        )
    for spec, node in zip(graph.outputs, graph.results, strict=True):
        if node is None or not isinstance(value_of(node), Tensor | TensorMeta):
            raise broken(ends[0], f"the {spec.kind} {spec.name} is not a tensor", why="every output has a value")
        if spec.kind is OutputKind.LOSS and (len(value_of(node).shape) or value_of(node).dtype != torch.float32):
            found = f"{value_of(node).dtype}{list(value_of(node).shape)}"
            raise broken(node, f"the loss is {found}", why="it is one float32 number")
    gradients = find_gradients(graph)
    if not gradients and not any(tag_of(node).direction is Direction.BACKWARD for node in nodes):
        return  # a forward alone, for evaluation
    _check_slots(graph, [slot for slot, _ in gradients], facts)
    states = {spec.name: spec for spec in graph.inputs if spec.kind is InputKind.STATE}
    fed = find_fed(graph, nodes)
    owners: dict[Node, str] = {}
    for slot, node in gradients:
        value = value_of(node)
        if node in owners:
            raise broken(node, f"{owners[node]} and {slot} have one gradient", why="each parameter has its own")
        owners[node] = slot
        if tuple(value.shape) != states[slot].shape or not value.dtype.is_floating_point:
            found = f"{value.dtype}{list(value.shape)}"
            raise broken(node, f"the gradient of {slot} is {found}", why=f"its shard is {list(states[slot].shape)}")
        if tag_of(node).direction is not Direction.BACKWARD or node not in fed:
            raise broken(node, f"the gradient of {slot} does not depend on the batch", why="backward was cut off")


def _check_slots(graph: StepGraph, slots: list[str], facts: Facts) -> None:
    states = [spec.name for spec in graph.inputs if spec.kind is InputKind.STATE]
    for wanted, where in ((states, "inputs"), (facts.trained or states, "the parameter table")):
        if sorted(slots) != sorted(wanted):
            odd = sorted(set(slots) ^ set(wanted)) or [slot for slot in slots if slots.count(slot) > 1]
            raise GraphError(
                f"gradients and {where} do not name the same parameters: {', '.join(odd[:5])}",
                why="each parameter has one gradient",
                do="passes keep the outputs as they are",
            )


def find_fed(graph: StepGraph, nodes: Sequence[Node]) -> set[Node]:
    """The nodes whose numbers depend on the batch, of which a pipeline stage sees what another one made of it."""
    pairs = zip(graph.placeholders, graph.inputs, strict=True)
    fed = {node for node, spec in pairs if spec.kind in FROM_BATCH}
    for node in nodes:
        if not (fed.isdisjoint(node.all_input_nodes) or reads_shape_only(node) or is_size(node)):
            fed.add(node)
    return fed
