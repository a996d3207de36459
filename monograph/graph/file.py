"""A step's graph as a file: everything that runs it and prints it, as data that names ops and never as code.

Reading makes calls to operators of three libraries and to a few functions on sizes, and to nothing else. Names of nodes
are made anew: what a file says never becomes part of the code that runs the graph.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from monograph.compat.capture import is_op, make_lazy_module
from monograph.graph.encode import (
    GraphFileError,
    decode_argument,
    decode_form,
    decode_tag,
    encode_argument,
    encode_form,
    encode_tag,
    find_dtype,
    name_dtype,
)
from monograph.graph.forms import form_of
from monograph.graph.host_copy import WAIT_COPY
from monograph.graph.query import value_of
from monograph.graph.signature import InputKind, InputSpec, OutputKind, OutputSpec
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import has_tag, set_tag, tag_of

LIBRARIES = ("aten", "_c10d_functional", WAIT_COPY.namespace)
"""Whose operators a graph may call."""
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in ("getitem", "add", "sub", "mul", "floordiv", "mod", "neg", "pos", "eq", "ne", "lt", "le", "gt", "ge")
} | {"sym_max": torch.sym_max, "sym_min": torch.sym_min, "sym_sum": torch.sym_sum}
"""Parts of lists, and arithmetic on sizes."""
_NAMES = {function: name for name, function in FUNCTIONS.items()}
_OP = re.compile(r"[a-z_0-9A-Z]+\.[a-z_0-9A-Z]+\.[a-z_0-9A-Z]+")
_PART = re.compile(r"compiled(_[0-9]+)?")


def graph_to_data(graph: StepGraph) -> dict[str, Any]:
    """The graph as objects that JSON can write; parts that a compiler made are only named."""
    places = {node: place for place, node in enumerate(graph.nodes)}
    tags, values = Shared(), Shared()
    nodes = []
    for node in graph.nodes:
        entry: dict[str, Any] = {"op": node.op}
        if node.op != "placeholder":
            entry["args"] = [encode_argument(value, places.__getitem__) for value in node.args]
        if node.op in ("call_function", "call_module"):
            entry["target"] = name_target(node)
        elif node.op not in ("placeholder", "output"):
            raise GraphFileError(f"{node.name} is a {node.op}; a graph file holds calls of operators only")
        if node.kwargs:
            entry["kwargs"] = {name: encode_argument(value, places.__getitem__) for name, value in node.kwargs.items()}
        if has_tag(node):
            entry["tag"] = tags.place(encode_tag(tag_of(node)))
        entry["value"] = values.place(encode_form(form_of(value_of(node))))
        nodes.append(entry)
    return {
        "inputs": [_encode_input(spec) for spec in graph.inputs],
        "outputs": [[spec.kind.value, spec.name] for spec in graph.outputs],
        "compiled": graph.compiled,
        "tags": tags.entries,
        "values": values.entries,
        "nodes": nodes,
    }


class Shared:
    """Entries that are written once, however many nodes have them."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, entry: Any) -> int:
        """Where the entry stands in the list."""
        place = self._places.setdefault(repr(entry), len(self.entries))
        if place == len(self.entries):
            self.entries.append(entry)
        return place


def name_target(node: Node) -> str:
    """What a node calls, as a file says it."""
    if node.op == "call_module":
        return str(node.target)
    if is_op(node.target) and str(node.target).split(".")[0] in LIBRARIES:
        return str(node.target)
    name = _NAMES.get(node.target)  # type: ignore[arg-type]
    if name is None:
        raise GraphFileError(f"{node.name} calls {node.target}, which graph files do not know")
    return name


def find_target(name: Any) -> Any:
    """The operator or function of that name; only what the lists above allow."""
    if isinstance(name, str) and name in FUNCTIONS:
        return FUNCTIONS[name]
    if isinstance(name, str) and _OP.fullmatch(name):
        library, packet, overload = name.split(".")
        if library in LIBRARIES:
            found = getattr(getattr(getattr(torch.ops, library), packet, None), overload, None)
            if is_op(found):
                return found
    raise GraphFileError(f"a node calls {name!r:.80}, which graph files may not")


def graph_from_data(data: Any, parts: Mapping[str, nn.Module]) -> StepGraph:
    """The graph that `graph_to_data` described; `parts` is the compiled code by name. Anything else is refused."""
    try:
        inputs = tuple(_decode_input(entry) for entry in data["inputs"])
        outputs = tuple(OutputSpec(kind=OutputKind(kind), name=str(name)) for kind, name in data["outputs"])
        graph = Graph()
        _add_nodes(graph, data, parts)
        compiled = int(data["compiled"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise GraphFileError(f"it is not a graph: {type(error).__name__}: {error}") from None
    root = nn.Module()
    for name, part in parts.items():
        root.add_module(name, part)
    found = StepGraph(module=make_lazy_module(root, graph), inputs=inputs, outputs=outputs, compiled=compiled)
    if len(found.placeholders) != len(inputs) or len(found.results) != len(outputs):
        raise GraphFileError("the graph has other inputs or outputs than it says")
    return found


def _add_nodes(graph: Graph, data: Mapping[str, Any], parts: Mapping[str, nn.Module]) -> None:
    tags = [decode_tag(tag) for tag in data["tags"]]
    values = [decode_form(value) for value in data["values"]]
    nodes: list[Node] = []
    for entry in data["nodes"]:
        args = tuple(decode_argument(value, nodes) for value in entry.get("args", ()))
        node = _make_node(graph, entry, args, nodes, parts)
        node.meta["val"] = values[entry["value"]]
        if "tag" in entry:
            set_tag(node, tags[entry["tag"]])
        nodes.append(node)
    if not nodes or nodes[-1].op != "output":
        raise GraphFileError("the last node is not the output")


def _make_node(
    graph: Graph, entry: Mapping[str, Any], args: tuple[Any, ...], nodes: list[Node], parts: Mapping[str, nn.Module]
) -> Node:
    kind = entry["op"]
    if kind == "placeholder":
        return graph.placeholder(f"in{len(nodes)}")
    if kind == "output":
        return graph.output(args[0])
    if kind == "call_module":
        if entry["target"] not in parts or not _PART.fullmatch(entry["target"]):
            raise GraphFileError(f"there is no compiled part {entry['target']!r:.80}")
        return graph.call_module(entry["target"], args)
    if kind != "call_function":
        raise GraphFileError(f"a node is a {kind!r:.80}")
    target = find_target(entry["target"])
    kwargs = {name: decode_argument(value, nodes) for name, value in entry.get("kwargs", {}).items()}
    known = {argument.name for argument in target._schema.arguments} if is_op(target) else set()
    if not set(kwargs) <= known:
        raise GraphFileError(f"{entry['target']} takes no arguments called {sorted(set(kwargs) - known)}")
    return graph.create_node("call_function", target, args, kwargs, name=f"v{len(nodes)}")


def _encode_input(spec: InputSpec) -> list[Any]:
    shape, stride = list(spec.shape), list(spec.stride)
    return [spec.kind.value, spec.name, shape, name_dtype(spec.dtype), stride, spec.device]


def _decode_input(entry: Any) -> InputSpec:
    kind, name, shape, dtype, stride, device = entry
    return InputSpec(
        kind=InputKind(kind),
        name=str(name),
        shape=tuple(int(size) for size in shape),
        dtype=find_dtype(dtype),
        stride=tuple(int(size) for size in stride),
        device=str(device),
    )


def find_parts(graph: StepGraph) -> dict[str, nn.Module]:
    """The compiled parts a graph calls, by name, in the order of their first call."""
    names = dict.fromkeys(str(node.target) for node in graph.nodes if node.op == "call_module")
    return {name: graph.module.get_submodule(name) for name in names}
