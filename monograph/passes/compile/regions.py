"""Parts of the graph that a compiler gets: cut out, told apart, compiled once per kind, put back as one node."""

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from monograph.compat.capture import expression_of
from monograph.compat.compiler import CompiledCode, compile_graph
from monograph.compat.flex import FLEX_ATTENTION, FLEX_ATTENTION_BACKWARD
from monograph.graph.cast_weights import is_cached_cast, is_cached_float8
from monograph.graph.edit import fake_mode
from monograph.graph.host_use import find_host_use
from monograph.graph.query import is_compute, is_launch, is_size, is_wait, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, set_tag
from monograph.graph.text import render_inner
from monograph.kernels.catalog import register_decompositions

_SYMBOL = re.compile(r"\b[us]\d+\b")


@dataclass(frozen=True)
class Region:
    """Nodes that stand next to each other in the graph, what they read and what others read of them."""

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


class CompiledRegion(nn.Module):
    """Compiled code in the place of nodes."""

    def __init__(self, code: CompiledCode) -> None:
        super().__init__()
        self.code = code

    def forward(self, *values: Any) -> Any:
        return self.code(*values)


_ATOMIC = (torch.ops.aten.embedding_dense_backward.default,)
"""Ops that Inductor would turn into atomic additions, whose order is never the same twice."""


def can_compile(node: Node) -> bool:
    """Whether a node may be in a region: collectives and what waits for the host stay visible, sums keep an order."""
    is_special = is_launch(node) or is_wait(node) or is_size(node) or node.target in _ATOMIC
    is_once = is_cached_cast(node) or is_cached_float8(node)
    is_allowed = node.op == "call_function" and not is_special and not is_once
    return is_allowed and not find_host_use(node) and not is_flex_on_cpu(node)


def is_flex_on_cpu(node: Node) -> bool:
    """Whether a node is FlexAttention of a training step on a CPU, which Inductor cannot compile."""
    if node.target not in (FLEX_ATTENTION, FLEX_ATTENTION_BACKWARD):
        return False
    has_gradient = node.target is FLEX_ATTENTION_BACKWARD or node.args[6].get("OUTPUT_LOGSUMEXP")  # type: ignore[union-attr]
    return bool(has_gradient) and value_of(node)[0].device.type == "cpu"


def find_region(nodes: Sequence[Node]) -> Region:
    """The boundary of a run of nodes."""
    inside = set(nodes)
    values = (value for node in nodes for value in node.all_input_nodes if not is_inner_graph(value))
    read = dict.fromkeys(value for value in values if value not in inside)
    given = [node for node in nodes if any(user not in inside for user in node.users)]
    return Region(tuple(nodes), (*read, *find_missing_sizes(read)), tuple(given))


def find_missing_sizes(read: Iterable[Node]) -> list[Node]:
    """The sizes of inputs that cannot be read off them, because only a sum of theirs is a length; torch before 2.13
    has to be given these as well."""
    values = [value_of(node) for node in read]
    lengths: list[Any] = [size for value in values if isinstance(value, Tensor) for size in value.shape]
    lengths += [value for value in values if isinstance(value, torch.SymInt)]
    formulas = {expression_of(size) for size in lengths if isinstance(size, torch.SymInt)}
    missing: set[Any] = {symbol for formula in formulas for symbol in formula.free_symbols} - formulas
    found: dict[Any, Node] = {}
    if missing:
        for node in next(iter(read)).graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and expression_of(value) in missing:
                found.setdefault(expression_of(value), node)
    return list(found.values())


def is_inner_graph(node: Node) -> bool:
    """Whether a node stands for a graph that an op runs: it goes wherever the op goes."""
    return node.op == "get_attr" and isinstance(inner_graph(node), GraphModule)


def inner_graph(node: Node) -> Any:
    """What a node of the form get_attr reads."""
    return getattr(node.graph.owning_module, str(node.target), None)


def extract_subgraph(region: Region) -> GraphModule:
    """The region as a graph of its own."""
    graph, root = Graph(), nn.Module()
    copies: dict[Node, Node] = {}
    for value in dict.fromkeys(value for node in region.nodes for value in node.all_input_nodes):
        if is_inner_graph(value):
            root.add_module(str(value.target), inner_graph(value))
            copies[value] = graph.get_attr(str(value.target))
    for index, value in enumerate(region.inputs):
        copies[value] = graph.placeholder(f"in{index}")
        copies[value].meta["val"] = value_of(value)
    for node in region.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in region.outputs))
    return GraphModule(root, graph)


def make_region_key(region: Region) -> str:
    """Equal for regions that compute the same on values of the same form: these share one compiled code.

    unbacked symbols go by the order in which they appear, not by their names in the capture.
    """
    names: dict[Node, str] = {value: f"in{index}" for index, value in enumerate(region.inputs)}
    lines = [f"{name}: {_form(value_of(value))}" for value, name in names.items()]
    for index, node in enumerate(region.nodes):
        names[node] = f"v{index}"
        inner = [value for value in node.all_input_nodes if is_inner_graph(value)]
        names.update({value: render_inner("of", inner_graph(value).graph) for value in inner})
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda value: Named(names[value]))
        lines.append(f"v{index} = {node.target} {args} {kwargs} -> {_form(value_of(node))}")
    lines.append(", ".join(names[node] for node in region.outputs))
    seen: dict[str, str] = {}
    return _SYMBOL.sub(lambda found: seen.setdefault(found[0], f"size{len(seen)}"), "\n".join(lines))


class Named(str):
    """A value's name, printed without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _form(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device.type}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_form, value))}]"
    return str(value)


def compile_region(graph: StepGraph, region: Region, *, for_artifact: bool) -> CompiledRegion:
    """Compile a region for values of the form its inputs have."""
    register_decompositions()
    values = [value_of(value) for value in region.inputs]
    return CompiledRegion(
        compile_graph(extract_subgraph(region), values, fake_mode(graph.module.graph), for_artifact=for_artifact)
    )


def replace_with_compiled(graph: StepGraph, region: Region, name: str, code: CompiledRegion, tag: Tag) -> None:
    """One node that runs the code, and one for each value others read, instead of the region's nodes."""
    inside = graph.module.graph
    if not hasattr(graph.module, name):
        graph.module.add_submodule(name, code)
    last = region.nodes[-1]
    with inside.inserting_after(last):
        call = inside.call_module(name, region.inputs)
    call.meta["val"] = tuple(value_of(node) for node in region.outputs)
    set_tag(call, replace(tag, uses_host=any(find_host_use(node) for node in region.nodes)))
    anchor = call
    for index, node in enumerate(region.outputs):
        with inside.inserting_after(anchor):
            part = inside.call_function(operator.getitem, (call, index))
        part.meta["val"] = value_of(node)
        set_tag(part, tag)
        node.replace_all_uses_with(part, delete_user_cb=lambda user: user not in region.nodes)
        anchor = part
    inner = {value for node in region.nodes for value in node.all_input_nodes if is_inner_graph(value)}
    for node in (*reversed(region.nodes), *(value for value in inner if set(value.users) <= set(region.nodes))):
        inside.erase_node(node)


def group_consecutive(nodes: Sequence[Node], key: Any) -> list[list[Node]]:
    """Nodes next to each other for which `key` gives the same answer, other than None."""
    runs: list[list[Node]] = []
    current: Any = None
    for node in nodes:
        if not is_compute(node):
            continue
        found = key(node)
        if found is not None and found == current:
            runs[-1].append(node)
        elif found is not None:
            runs.append([node])
        current = found
    return runs
