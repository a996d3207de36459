"""What a graph must be before a run may use it, when it was read from a file: everything a file could have wrong.

The rules are those that every pass has to keep (`verify`), and three more, because a file was not captured here: its
arguments name only what this run has, its values are what its operators yield (`verify_forms`), and it fits into
memory.
"""

import math
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.fx import Node

from monograph.annotate import Direction
from monograph.compat.capture import is_op
from monograph.compat.ops import READ_SIZE
from monograph.graph.allowed_ops import FUNCTIONS, find_strings, name_of
from monograph.graph.cast_weights import find_castings, find_float8_castings
from monograph.graph.encode import GraphFileError
from monograph.graph.facts import Facts
from monograph.graph.formulas import Numbers, parse_formula
from monograph.graph.host_copy import TO_HOST
from monograph.graph.memory import find_held, find_lasting
from monograph.graph.query import is_backward, value_of
from monograph.graph.refuse import broken
from monograph.graph.signature import InputSpec, OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.graph.tensor_meta import ScalarMeta, SymIntMeta, TensorMeta
from monograph.graph.verify import check_inputs, check_order, check_outputs, check_purity, check_tags
from monograph.graph.verify_collectives import check_collectives
from monograph.graph.verify_meta import check_forms, find_bytes
from monograph.plurals import counted

_SLACK = 2
"""A step may be estimated to need this many times the memory there is: estimates are not exact."""


class MemoryLimits(NamedTuple):
    """The bytes of memory that a step may use."""

    device: int
    host: int


def check_read_graph(
    graph: StepGraph,
    facts: Facts,
    *,
    is_forward: bool,
    limits: MemoryLimits | None = None,
    runs_ops: bool = True,
) -> None:
    """Refuse a graph that a run with these facts may not use; without `limits`, it may need any amount of memory.

    Without `runs_ops` its values are believed to be what its ops yield: that takes longest (it imports sympy), and only
    a file that another user could have written needs it.
    """
    nodes = graph.nodes
    check_order(nodes)
    check_names(graph, facts)
    check_inputs(graph, nodes)
    check_tags(nodes)
    check_arguments(nodes, facts)
    check_purity(graph, nodes)
    if runs_ops:
        check_forms(nodes)
    check_collectives(graph, nodes, facts)
    check_outputs(graph, nodes, facts)
    check_direction(graph, is_forward=is_forward)
    check_cached_casts(graph)
    if limits is not None:
        check_memory(graph, limits)
        graph.max_size = find_max_size(nodes, limits.device)


def check_schema(graph: StepGraph, specs: Sequence[InputSpec]) -> None:
    """Refuse a graph with other inputs than this run has: they are bound by name."""
    wanted = {(spec.kind, spec.name): spec for spec in specs}
    for spec in graph.inputs:
        if wanted.get((spec.kind, spec.name)) != spec:
            raise GraphFileError(
                f"its input {spec.kind}/{spec.name:.80} is {spec!r:.200}, which this run does not have"
            )


def check_names(graph: StepGraph, facts: Facts) -> None:
    """Inputs and outputs are named once, and live on this run's device."""
    inputs = Counter((spec.kind, spec.name) for spec in graph.inputs)
    outputs = Counter((spec.kind, spec.name) for spec in graph.outputs)
    twice = [" ".join(name) for counts in (inputs, outputs) for name, count in counts.items() if count > 1]
    if twice:
        raise GraphFileError(f"{twice[0]:.80} is named twice")
    if sum(spec.kind is OutputKind.LOSS for spec in graph.outputs) != 1:
        raise GraphFileError("a step has one loss")
    devices = {spec.device for spec in graph.inputs} | {
        form.device.type for node in graph.nodes for form in _tensors(value_of(node))
    }
    if not devices <= {facts.device, "cpu"}:
        raise GraphFileError(f"its values are on {', '.join(sorted(devices))}; this run is on {facts.device}")


def check_arguments(nodes: Sequence[Node], facts: Facts) -> None:
    """Texts are names of this run's groups, devices and reductions; functions on sizes are given sizes."""
    groups = list(facts.group_sizes)
    for node in nodes:
        if node.op != "call_function":
            continue
        if not is_op(node.target):
            _check_function(node)
            continue
        names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
        if len(node.args) > len(names):
            raise broken(node, f"an operator has {counted(len(node.args), 'argument')}", why=f"it takes {len(names)}")
        op = name_of(node.target)
        for name, value in (*zip(names, node.args, strict=False), *node.kwargs.items()):
            for text in _texts(value):
                allowed = find_strings(op, name, groups, facts.device)
                if text not in allowed:
                    raise broken(
                        node,
                        f"the argument {name} is {text!r:.80}",
                        why=f"it may be {', '.join(allowed)}" if allowed else "no text is allowed there",
                    )
            if name == "pin_memory" and value:
                raise broken(node, "a node asks for pinned memory", why="only offloaded activations are pinned")


def _check_function(node: Node) -> None:
    """Parts of lists, and sums of sizes; any other use of Python's operators is refused."""
    first, second = node.args if len(node.args) == 2 and not node.kwargs else (None, None)
    if node.target is operator.getitem:
        owner = value_of(first) if isinstance(first, Node) else None
        if isinstance(owner, list) and type(second) is int and 0 <= second < len(owner):
            return
    elif node.target in FUNCTIONS.values() and _is_size(first) and _is_size(second):
        is_safe = node.target is not operator.floordiv or (type(second) is int and second > 0)
        if is_safe:
            return
    raise broken(node, "a function has other arguments than a list and an index, or two sizes", why="it is not allowed")


def _is_size(value: Any) -> bool:
    if isinstance(value, Node):
        form = value_of(value)
        return isinstance(form, SymIntMeta) or (isinstance(form, ScalarMeta) and form.kind == "int")
    return type(value) is int


def check_direction(graph: StepGraph, *, is_forward: bool) -> None:
    """A step has gradients and a backward; an evaluation has neither."""
    kinds = {spec.kind for spec in graph.outputs}
    has_backward = OutputKind.GRADIENT in kinds or any(is_backward(node) for node in graph.nodes)
    if has_backward == is_forward:
        found = "a backward" if has_backward else f"no {Direction.BACKWARD.value}"
        raise GraphFileError(f"it has {found}; {'an evaluation has none' if is_forward else 'a step needs one'}")


def check_cached_casts(graph: StepGraph) -> None:
    """Only casts of parameters change as seldom as the weights."""
    castings = {*find_castings(graph), *find_float8_castings(graph)}
    for node in graph.nodes:
        if node.op == "call_function" and tag_of(node).once and node not in castings:
            raise broken(node, "a node is to run once per update", why="it does more than to cast parameters")


def check_memory(graph: StepGraph, limits: MemoryLimits) -> None:
    """Refuse a step that cannot fit into memory, before it takes all of it."""
    numbers = Numbers(graph.nodes, first=1, step=0)
    needed = {node: find_bytes(value_of(node), numbers) for node in graph.nodes}
    held = find_held(graph.module.graph, ValueBytes(needed), find_lasting(graph))
    changes: Counter[int] = Counter()
    for each in held:
        if each.bytes > _SLACK * limits.device:
            raise broken(
                each.node, f"a value of {each.bytes:,} bytes", why=f"there are {limits.device:,} bytes of memory"
            )
        changes[each.first] += each.bytes
        changes[each.last + 1] -= each.bytes
    now = peak = 0
    for index in sorted(changes):
        now += changes[index]
        peak = max(peak, now)
    offloaded = sum(sum(sizes) for node, sizes in needed.items() if node.target is TO_HOST)
    for needs, there in ((peak, limits.device), (offloaded, limits.host)):
        if needs > _SLACK * there:
            raise GraphFileError(f"it needs about {needs:,} bytes of memory at its peak; there are {there:,}")


class ValueBytes:
    """The bytes of a graph's values, for `find_held`."""

    def __init__(self, needed: dict[Node, list[int]]) -> None:
        self._needed = needed

    def bytes_of(self, node: Node, part: int) -> int:
        """Bytes of one of a node's values."""
        return self._needed[node][part]


def find_max_size(nodes: Sequence[Node], memory_bytes: int) -> int | None:
    """The largest number that data may give a size: beyond it, a value with that many rows fills the memory."""
    if not any(node.target is READ_SIZE for node in nodes):
        return None
    row = 1
    for node in nodes:
        for form in _tensors(value_of(node)):
            if any(isinstance(size, str) for size in form.shape):
                sizes = [size if isinstance(size, int) else parse_formula(size).growth() for size in form.shape]
                row = max(row, math.prod(max(1, size) for size in sizes) * form.dtype.itemsize)
    return max(1, memory_bytes // row)


def _tensors(form: Any) -> list[TensorMeta]:
    forms = form if isinstance(form, list) else [form]
    return [each for each in forms if isinstance(each, TensorMeta)]


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [text for item in value for text in _texts(item)] if isinstance(value, list | tuple) else []
