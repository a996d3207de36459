"""A step's graph as a file: everything that runs it and prints it, as data that names ops and never as code.

Reading makes calls to the operators of one list (`allowed_ops`) and to nothing else. Names of nodes are made anew: what
a file says never becomes part of the code that runs the graph. Whether a run may use it is checked by `verify_read`.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import Graph, Node

from monograph.compat.capture import is_op, make_lazy_module
from monograph.graph.allowed_ops import find_target, is_allowed, name_of
from monograph.graph.encode import (
    GraphFileError,
    decode_argument,
    decode_meta,
    decode_tag,
    encode_argument,
    encode_meta,
    encode_tag,
    find_dtype,
    name_dtype,
)
from monograph.graph.query import value_of
from monograph.graph.signature import InputKind, InputSpec, OutputKind, OutputSpec
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import has_tag, set_tag, tag_of
from monograph.graph.tensor_meta import meta_of
from monograph.system.foreign_json import UnusableFile, parse_json

_PART = re.compile(r"compiled(_[0-9]+)?")
_KEYS = {
    "placeholder": {"op", "value", "tag"},
    "output": {"op", "value", "tag", "args"},
    "call_module": {"op", "value", "tag", "args", "target"},
    "call_function": {"op", "value", "tag", "args", "target", "kwargs"},
}
"""Kind of node -> what a file may say of it."""


def graph_to_data(graph: StepGraph) -> dict[str, Any]:
    """The graph as objects that JSON can write; parts that a compiler made are only named."""
    indices = {node: place for place, node in enumerate(graph.nodes)}
    tags, values = SharedEntries(), SharedEntries()
    nodes = []
    for node in graph.nodes:
        entry: dict[str, Any] = {"op": node.op}
        if node.op != "placeholder":
            entry["args"] = [encode_argument(value, indices.__getitem__) for value in node.args]
        if node.op in ("call_function", "call_module"):
            entry["target"] = name_target(node)
        elif node.op not in ("placeholder", "output"):
            raise GraphFileError(f"{node.name} is a {node.op}; a graph file holds calls of operators only")
        if node.kwargs:
            entry["kwargs"] = {name: encode_argument(value, indices.__getitem__) for name, value in node.kwargs.items()}
        if has_tag(node):
            entry["tag"] = tags.place(encode_tag(tag_of(node)))
        entry["value"] = values.place(encode_meta(meta_of(value_of(node))))
        nodes.append(entry)
    return {
        "inputs": [_encode_input(spec) for spec in graph.inputs],
        "outputs": [[spec.kind.value, spec.name] for spec in graph.outputs],
        "compiled": graph.compiled,
        "tags": tags.entries,
        "values": values.entries,
        "nodes": nodes,
    }


class SharedEntries:
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
    name = name_of(node.target)
    if not is_allowed(name):
        raise GraphFileError(
            f"{node.name} calls {name}, which is not in the list of operators that graph files may call; "
            "a model that needs it says so with allow_op (monograph/graph/allowed_ops.py)"
        )
    return name


def parse_graph_file(content: bytes) -> Any:
    """The objects that `graph_to_data` made, from JSON; an object that names something twice is refused."""
    try:
        return parse_json(content, "the graph")
    except UnusableFile as error:
        raise GraphFileError(error.why) from None


def graph_from_data(data: Any, parts: Mapping[str, nn.Module]) -> StepGraph:
    """The graph that `graph_to_data` described; `parts` is the compiled code by name. Anything else is refused."""
    try:
        inputs = tuple(_decode_input(entry) for entry in data["inputs"])
        outputs = tuple(_decode_output(entry) for entry in data["outputs"])
        graph = Graph()
        _add_nodes(graph, data, parts)
        compiled = data["compiled"]
    except GraphFileError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise GraphFileError(f"it is not a graph: {type(error).__name__}: {str(error)[:200]}") from None
    if type(compiled) is not int or not 0 <= compiled <= len(data["nodes"]):
        raise GraphFileError(f"compiled is {compiled!r:.40}; it counts the parts that a compiler was given")
    root = nn.Module()
    for name, part in parts.items():
        root.add_module(name, part)
    found = StepGraph(module=make_lazy_module(root, graph), inputs=inputs, outputs=outputs, compiled=compiled)
    if len(found.placeholders) != len(inputs) or len(found.results) != len(outputs):
        raise GraphFileError("the graph has other inputs or outputs than it says")
    return found


def _add_nodes(graph: Graph, data: Mapping[str, Any], parts: Mapping[str, nn.Module]) -> None:
    tags = [decode_tag(tag) for tag in data["tags"]]
    values = [decode_meta(value) for value in data["values"]]
    nodes: list[Node] = []
    for entry in data["nodes"]:
        if not isinstance(entry, dict) or not entry.keys() <= _KEYS.get(str(entry.get("op")), set()):
            raise GraphFileError(f"a node is {str(entry)[:80]}")
        args = tuple(decode_argument(value, nodes) for value in entry.get("args", ()))
        node = _make_node(graph, entry, args, nodes, parts)
        node.meta["val"] = values[_check_index(entry["value"], len(values))]
        if "tag" in entry:
            set_tag(node, tags[_check_index(entry["tag"], len(tags))])
        nodes.append(node)
    if not nodes or [node for node in nodes if node.op == "output"] != nodes[-1:]:
        raise GraphFileError("the last node is not the only output")


def _check_index(index: Any, count: int) -> int:
    if type(index) is not int or not 0 <= index < count:
        raise GraphFileError(f"a node refers to entry {index!r:.40} of {count}")
    return index


def _make_node(
    graph: Graph, entry: Mapping[str, Any], args: tuple[Any, ...], nodes: list[Node], parts: Mapping[str, nn.Module]
) -> Node:
    kind = entry["op"]
    if kind == "placeholder":
        return graph.placeholder(f"in{len(nodes)}")
    if kind == "output":
        if len(args) != 1 or not isinstance(args[0], list) or not all(isinstance(each, Node) for each in args[0]):
            raise GraphFileError("the output is not a list of values")
        return graph.output(args[0])
    if kind == "call_module":
        if not isinstance(entry["target"], str) or entry["target"] not in parts or not _PART.fullmatch(entry["target"]):
            raise GraphFileError(f"there is no compiled part {entry['target']!r:.80}")
        return graph.call_module(entry["target"], args)
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
    if not isinstance(name, str) or not isinstance(device, str) or not (_is_sizes(shape) and _is_sizes(stride)):
        raise GraphFileError(f"an input is {str(entry)[:80]}")
    return InputSpec(
        kind=InputKind(kind),
        name=name,
        shape=tuple(shape),
        dtype=find_dtype(dtype),
        stride=tuple(stride),
        device=device,
    )


def _is_sizes(sizes: Any) -> bool:
    return isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)


def _decode_output(entry: Any) -> OutputSpec:
    kind, name = entry
    if not isinstance(name, str):
        raise GraphFileError(f"an output is {str(entry)[:80]}")
    return OutputSpec(kind=OutputKind(kind), name=name)


def find_parts(graph: StepGraph) -> dict[str, nn.Module]:
    """The compiled parts a graph calls, by name, in the order of their first call."""
    names = dict.fromkeys(str(node.target) for node in graph.nodes if node.op == "call_module")
    return {name: graph.module.get_submodule(name) for name in names}
