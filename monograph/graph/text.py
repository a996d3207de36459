"""The graph as text: one node a line, named by where it is, with equal blocks printed once.

A node is named after its place: `f3.12` is the 12th node of block 3 in forward, `b3.7` in backward, `f.4` lies outside
of the blocks. What a block reads from elsewhere is named `in0`, `in1`, ... and listed in its headline, other blocks by
distance (`f-1.40`). So equal blocks read equally, and only the first of them has to be shown.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from monograph.annotate import Direction
from monograph.compat.capture import is_op
from monograph.graph.tags import Tag, has_tag, make_generic, tag_of
from monograph.graph.tensor_meta import SymIntMeta, TensorMeta
from monograph.plurals import counted

_COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


@dataclass(frozen=True)
class NodePosition:
    """Where a node is printed: its half of the step, its block, its number there."""

    direction: Direction
    block: int | None
    number: int

    def seen_from(self, block: int | None) -> str:
        """The name as it is written inside another block."""
        half = self.direction.value[0]
        if self.block is None:
            return f"{half}.{self.number}"
        if block is None:
            return f"{half}{self.block}.{self.number}"
        return f"{half}{self.block - block:+d}.{self.number}"


@dataclass(frozen=True)
class TextPart:
    """Nodes of one block and direction that follow each other, one line each."""

    direction: Direction
    block: int | None
    outside: str
    """What `in0`, `in1`, ... stand for here, as the headline ends."""
    lines: list[str]
    nodes: list[Node]

    @property
    def name(self) -> str:
        """`forward`, `backward block 3`."""
        return self.direction.value if self.block is None else f"{self.direction.value} block {self.block}"


def render_parts(graph: Graph, inputs: Mapping[Node, str]) -> list[TextPart]:
    """The text of a graph whose placeholders go by the given names, part by part."""
    positions = number_nodes(graph)
    parts = []
    for (direction, block), nodes in split_into_parts(graph, positions):
        unit = next((tag_of(node).unit for node in nodes if has_tag(node) and tag_of(node).block == block), "")
        names = ValueNames(positions, inputs, direction, block, unit if block is not None else "")
        lines = [render_node(node, names) for node in nodes]
        parts.append(TextPart(direction, block, names.listed(), lines, nodes))
    return parts


def join_texts(parts: Sequence[TextPart], inner: Sequence[str], *, folded: bool) -> str:
    """The whole text, with that of inner graphs at its end; `folded` prints equal blocks once."""
    lines: list[str] = []
    shown: dict[tuple[Direction, str], int] = {}
    for part in parts:
        body = [f"  {line}" for line in part.lines]
        key = (part.direction, "\n".join(part.lines))
        if folded and part.block is not None and key in shown:
            lines.append(f"{part.name}: like {shown[key]}{part.outside}")
            continue
        if part.block is not None:
            shown[key] = part.block
        lines += [f"{part.name}:{part.outside}", *body]
    return "".join(("\n".join(_join_runs(lines)), "\n", *inner))


def render_inner(name: str, graph: Graph) -> str:
    """The text of a graph that an op of the step runs, such as the score function of an attention."""
    inputs = {node: node.name for node in graph.nodes if node.op == "placeholder"}
    rest = [node for node in graph.nodes if node not in inputs]
    names = ValueNames(
        {node: NodePosition(Direction.FORWARD, None, position) for position, node in enumerate(rest)}, inputs
    )
    lines = [f"graph {name}({', '.join(inputs.values())}):", *(f"  {render_node(node, names)}" for node in rest)]
    return "\n".join(lines) + "\n"


class ValueNames:
    """How values are called inside one part of the text."""

    def __init__(
        self,
        positions: Mapping[Node, NodePosition],
        inputs: Mapping[Node, str],
        direction: Direction = Direction.FORWARD,
        block: int | None = None,
        unit: str = "",
    ) -> None:
        self.positions, self.inputs, self.direction, self.block = positions, inputs, direction, block
        self.unit = unit
        self._outside: dict[str, str] = {}

    def of(self, node: Node) -> str:
        """An input by its name, a value of this block by its number, anything else as `in0`, `in1`, ..."""
        if node in self.inputs:
            return f"%{self.generic(self.inputs[node])}"
        position = self.positions[node]
        if self.block is None:
            return position.seen_from(None)
        if position.block == self.block:
            return f"{position.direction.value[0]}.{position.number}"
        return self._outside.setdefault(position.seen_from(self.block), f"in{len(self._outside)}")

    def generic(self, name: str) -> str:
        """A path with this block's own number left out."""
        return make_generic(name, self.unit)

    def listed(self) -> str:
        """What `in0`, `in1`, ... stand for."""
        return f" ({', '.join(f'{name} = {value}' for value, name in self._outside.items())})" if self._outside else ""


def number_nodes(graph: Graph) -> dict[Node, NodePosition]:
    """Every node's position; numbers count within one block and direction.

    Sums of gradients have no module of their own; they are printed with the block they stand in.
    """
    counts: dict[tuple[Direction, int | None], Iterator[int]] = {}
    positions = {}
    block = None
    for node in graph.nodes:
        tag = tag_of(node) if has_tag(node) else Tag()
        if node.op in ("placeholder", "output"):
            continue
        if tag.path or tag.slot or tag.direction is Direction.FORWARD:
            block = tag.block
        key = (tag.direction, block)
        positions[node] = NodePosition(*key, next(counts.setdefault(key, itertools.count())))
    return positions


def split_into_parts(
    graph: Graph, positions: Mapping[Node, NodePosition]
) -> Iterator[tuple[tuple[Direction, int | None], list[Node]]]:
    """Runs of nodes of one block and direction, in order; the output comes last."""
    last = (Direction.BACKWARD, None)
    keys = {node: (positions[node].direction, positions[node].block) for node in graph.nodes if node in positions}
    for key, run in itertools.groupby([*keys, graph.output_node()], key=lambda node: keys.get(node, last)):
        yield key, list(run)


def render_node(node: Node, names: ValueNames) -> str:
    """One line: number, type, op, arguments, and the facts in its tag."""
    if node.op == "output":
        values = node.args[0] if isinstance(node.args[0], list | tuple) else node.args
        return "return " + ", ".join(_show(value, names) for value in values)
    arguments = [_show(value, names) for value in node.args]
    arguments += [f"{name}={_show(value, names)}" for name, value in node.kwargs.items()]
    op = _name_op(node)
    mark = "  <<" if any(name in op for name in _COLLECTIVES) else ""
    facts = _facts(tag_of(node), names) if has_tag(node) else ""
    return f"{names.positions[node].number}: {_type(node)} = {op}({', '.join(arguments)}){mark}{facts}"


def _name_op(node: Node) -> str:
    if node.op == "get_attr":
        return f"constant {node.target}"
    if is_op(node.target):
        return str(node.target).removeprefix("aten.").removeprefix("_c10d_functional.").removesuffix(".default")
    return getattr(node.target, "__name__", str(node.target))


def _show(value: Any, names: ValueNames) -> str:
    if isinstance(value, Node):
        return names.of(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_show(item, names) for item in value)}]"
    return str(value).removeprefix("torch.")


def _type(node: Node) -> str:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor | TensorMeta):
        sizes = ", ".join(str(size) if isinstance(size, int) else "?" for size in value.shape)
        return f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"
    if isinstance(value, list | tuple):
        return f"{counted(len(value), 'value')}"
    return "size" if isinstance(value, torch.SymInt | SymIntMeta) else "value"


def _facts(tag: Tag, names: ValueNames) -> str:
    named = (names.generic(f"{tag.path}.").rstrip("."), tag.role and tag.role.value, names.generic(tag.slot))
    facts = [*(str(fact) for fact in named if fact), *([f"in {tag.region}"] if tag.region else [])]
    facts += [f"chunk {tag.chunk}"] if tag.chunk is not None else []
    facts += ["saved"] if tag.keep else []
    facts += ["once"] if tag.once else []
    facts += [f"compile {names.generic(tag.compile + '.').rstrip('.')}"] if tag.compile else []
    facts += [f"({tag.choice})"] if tag.choice else []
    facts += [f"by {tag.made_by}"] if tag.made_by != "capture" else []
    return f"  # {' '.join(facts)}" if facts else ""


def _join_runs(lines: list[str]) -> Iterator[str]:
    """`block 2: like 1`, `block 3: like 1` -> `blocks 2..3: like 1`."""
    for (half, like), run in itertools.groupby(lines, key=_fold_key):
        found = list(run)
        if like is None or len(found) == 1:
            yield from found
        else:
            first, last = (line.split(" block ")[1].split(":")[0] for line in (found[0], found[-1]))
            yield f"{half} blocks {first}..{last}: like {like}"


def _fold_key(line: str) -> tuple[str, str | None]:
    half, found, rest = line.partition(" block ")
    if found and ": like " in rest and half in {direction.value for direction in Direction}:
        return half, rest.split(": like ")[1]
    return line, None
