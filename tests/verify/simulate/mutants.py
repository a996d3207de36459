"""Generated faults in a captured step: collectives, coordinates, slices, masks, constants and scalars."""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from monograph.axes import COORDS, Group
from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, WAIT_TENSOR
from monograph.graph.signature import InputKind
from monograph.graph.step_graph import StepGraph, copy_graph
from monograph.parallel.mesh import Mesh

ATEN = torch.ops.aten
COLLECTIVES = (ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER)
OTHERWISE = {
    ATEN.lt.Scalar: ATEN.le.Scalar,
    ATEN.ge.Scalar: ATEN.gt.Scalar,
    ATEN.eq.Tensor: ATEN.ne.Tensor,
    ATEN.ne.Scalar: ATEN.eq.Scalar,
    ATEN.bitwise_and.Tensor: ATEN.bitwise_or.Tensor,
}
"""Comparisons, and what is written by mistake for them."""
ARITHMETIC = frozenset(
    (
        *(ATEN.mul.Scalar, ATEN.mul.Tensor, ATEN.add.Scalar, ATEN.add.Tensor, ATEN.sub.Tensor, ATEN.div.Scalar),
        *(ATEN.div.Tensor, ATEN.pow.Tensor_Scalar, ATEN.floor_divide.default, ATEN.masked_fill.Scalar),
        *(ATEN.scatter.value, ATEN.scalar_tensor.default, operator.floordiv),
    )
)
"""Ops whose numbers are constants of the step."""


@dataclass(frozen=True)
class Mutant:
    """One change of one node."""

    kind: str
    node: str
    what: str
    change: Callable[[Node], None]

    def __str__(self) -> str:
        return f"{self.kind}: {self.what} at {self.node}"

    def apply(self, graph: StepGraph) -> StepGraph:
        """A copy of the graph with the change."""
        mutant = copy_graph(graph)
        self.change(next(node for node in mutant.nodes if node.name == self.node))
        return mutant


def list_mutants(graph: StepGraph, mesh: Mesh) -> Iterator[Mutant]:
    """Every generated fault, in the order of the nodes."""
    specs = dict(zip(graph.placeholders, graph.inputs, strict=True))
    for node in graph.nodes:
        if node.op == "placeholder":
            yield from _of_input(node, specs[node].kind)
        elif node.op == "call_function":
            for kind, what, change in _of_call(node, mesh):
                yield Mutant(kind, node.name, what, change)


def _of_input(node: Node, kind: InputKind) -> Iterator[Mutant]:
    if kind is InputKind.COORDS:
        for user in node.users:
            index = int(user.args[2])
            yield Mutant("coordinate", user.name, "of another axis", _with_arg(2, (index + 1) % len(COORDS)))
            yield Mutant("coordinate", user.name, "one more", _after(lambda node: (ATEN.add.Scalar, (node, 1))))
            yield Mutant("coordinate", user.name, "always 0", _after(lambda node: (ATEN.mul.Scalar, (node, 0))))
    if kind is InputKind.SCALAR:
        yield Mutant("scalar", node.name, "twice as large", _after(lambda node: (ATEN.mul.Scalar, (node, 2))))
        yield Mutant("scalar", node.name, "one less", _after(lambda node: (ATEN.sub.Scalar, (node, 1))))


def _of_call(node: Node, mesh: Mesh) -> Iterator[tuple[str, str, Callable[[Node], None]]]:
    target, args = node.target, node.args
    if target in COLLECTIVES:
        yield from (("collective", *pair) for pair in _of_collective(node, mesh))
    elif target is ATEN.slice.Tensor and len(args) == 4:
        size = _shape(args[0])[args[1]]
        start, stop = int(args[2]), min(int(args[3]), size)
        for by in (-1, 1):
            if start + by >= 0 and stop + by <= size:
                yield "slice", f"moved by {by}", _with_args(args[0], args[1], start + by, stop + by)
    elif target is ATEN.split_with_sizes.default and len(set(args[1])) > 1:
        yield "slice", "sizes in another order", _with_arg(1, list(reversed(args[1])))
    elif target is operator.getitem and isinstance(args[0].meta.get("val"), list | tuple):
        count = len(args[0].meta["val"])
        shapes = [getattr(value, "shape", None) for value in args[0].meta["val"]]
        other = (args[1] + 1) % count
        if count > 1 and shapes[other] == shapes[args[1]]:
            yield "slice", "the next part", _with_arg(1, other)
    elif target is ATEN.where.self:
        yield "mask", "turned round", _with_args(args[0], args[2], args[1])
    elif target is ATEN.masked_fill.Scalar:
        yield "mask", "turned round", _before(1, lambda mask: (ATEN.logical_not.default, (mask,)))
    elif target in OTHERWISE:
        yield "mask", "another comparison", _with_target(OTHERWISE[target])
    if target in ARITHMETIC:
        for place, value in enumerate(args):
            if isinstance(value, bool) or not isinstance(value, int | float) or value in (float("inf"), -float("inf")):
                continue
            yield "constant", "one more", _with_arg(place, value + 1)
            if value:
                yield "constant", "twice as large", _with_arg(place, value * 2)


def _of_collective(node: Node, mesh: Mesh) -> Iterator[tuple[str, Callable[[Node], None]]]:
    """Five faults of every collective."""
    target, args = node.target, node.args
    size, group = mesh.group_size(Group(args[-1])), str(args[-1])
    if target is ALL_REDUCE:
        yield "left out", _after_wait(lambda node, given: (ATEN.clone.default, (given,)))
        yield "max instead of sum", _with_arg(1, "max" if args[1] == "sum" else "sum")
    elif target is REDUCE_SCATTER:
        rows = _shape(args[0])[0] // size
        yield "left out", _after_wait(lambda node, given: (ATEN.slice.Tensor, (given, 0, 0, rows)))
        yield "max instead of sum", _with_arg(1, "max")
    elif target is ALL_GATHER:
        yield "left out", _after_wait(lambda node, given: (ATEN.cat.default, ([given] * size,)))
        yield "in another order", _after_wait(lambda node, given: (ATEN.roll.default, (node, [1], [0])))
    else:
        yield "left out", _after_wait(lambda node, given: (ATEN.clone.default, (given,)))
        yield "in another order", _after_wait(lambda node, given: (ATEN.roll.default, (node, [1], [0])))
    yield "counted twice", _after_wait(lambda node, given: (ATEN.mul.Scalar, (node, 2)))
    yield "divided by its ranks", _after_wait(lambda node, given: (ATEN.div.Scalar, (node, size)))
    yield "over another group", _with_arg(len(args) - 1, _find_neighbour(group, mesh))


def _find_neighbour(group: str, mesh: Mesh) -> str:
    """Another group of as many ranks, of other ranks; else of another number."""
    own = mesh.members(Group(group), 0)
    others = [each for each in Group if mesh.members(each, 0) != own and each is not Group.WORLD]
    same = [each for each in others if mesh.group_size(each) == len(own)]
    return (same or others)[0].value


def _with_arg(place: int, value: Any) -> Callable[[Node], None]:
    return lambda node: node.update_arg(place, value)


def _with_args(*values: Any) -> Callable[[Node], None]:
    """Other arguments; nodes among them are found by name, as the change is made in a copy."""

    def change(node: Node) -> None:
        own = {operand.name: operand for operand in node.all_input_nodes}
        node.args = tuple(own[value.name] if isinstance(value, Node) else value for value in values)

    return change


def _with_target(target: Any) -> Callable[[Node], None]:
    def change(node: Node) -> None:
        node.target = target

    return change


def _after(make: Callable[[Node], tuple[Any, tuple[Any, ...]]]) -> Callable[[Node], None]:
    """All users read a call on the node instead."""

    def change(node: Node) -> None:
        graph = node.graph
        inputs = [each for each in graph.nodes if each.op == "placeholder"]
        with graph.inserting_after(inputs[-1] if node in inputs else node):
            target, args = make(node)
            changed = graph.call_function(target, args)
        node.replace_all_uses_with(changed, delete_user_cb=lambda user: user is not changed)

    return change


def _after_wait(make: Callable[[Node, Node], tuple[Any, tuple[Any, ...]]]) -> Callable[[Node], None]:
    """The same for a collective's result, once it is waited for; `make` gets the result and the operand."""

    def change(node: Node) -> None:
        (wait,) = (user for user in node.users if user.target is WAIT_TENSOR)
        _after(lambda _: make(wait, node.args[0]))(wait)  # type: ignore[arg-type]

    return change


def _before(place: int, make: Callable[[Any], tuple[Any, tuple[Any, ...]]]) -> Callable[[Node], None]:
    """One argument is changed first."""

    def change(node: Node) -> None:
        with node.graph.inserting_before(node):
            changed = node.graph.call_function(*make(node.args[place]))
        node.update_arg(place, changed)

    return change


def _shape(node: Any) -> Any:
    return node.meta["val"].shape
