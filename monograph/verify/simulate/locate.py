"""The first node of a wrong step: placements of all nodes against the same step without its plan.

The other step is captured for one device and runs on the micro-batch of each data-parallel part. Nodes with a
placement hold what one device holds. A node without one is suspected where nothing that follows from it has one
either: what experts exchange in between has none on a healthy mesh.
"""

import operator
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from monograph.annotate import Role
from monograph.axes import Group
from monograph.capture.capture import capture
from monograph.compat.ops import WAIT_TENSOR
from monograph.graph.signature import OutputKind, OutputSpec
from monograph.graph.sources import source_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import find_tag
from monograph.parallel.config import ParallelismConfig
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import Slot
from monograph.run import build_source, make_example
from monograph.train.config import TrainerConfig
from monograph.verify.simulate.align import align_nodes
from monograph.verify.simulate.collectives import COLLECTIVES
from monograph.verify.simulate.coordinates import Coordinates
from monograph.verify.simulate.execute import GraphMachine, SharedValue
from monograph.verify.simulate.outcome import NOISE, OutputDifference, compare_shards, largest
from monograph.verify.simulate.placements import Placement, find_placement, has_way
from monograph.verify.simulate.rounds import SimulatedRound

MOST_PARTS = 4
"""Data-parallel parts that placements are looked at for; the first of more."""
MOVES = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("view", "_unsafe_view", "permute", "clone", "unsqueeze", "expand", "detach", "alias", "t", "_to_copy")
) | {torch.ops.aten.transpose.int, torch.ops.aten.squeeze.dim, operator.getitem, WAIT_TENSOR}
"""Ops that change no number: what is wrong after them was wrong before."""
READS_SHAPE = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("ones_like", "zeros_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty")
)
"""Ops that read no number of their operand."""
SELECT = torch.ops.aten.select.int


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Where a fault is seen first."""

    what: str
    """What is wrong, in words."""
    path: str = ""
    """The module."""
    source: str = ""
    """The line of code, where it is known."""
    node: str = ""

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.path, self.source) if part)
        return f"{self.what} ({where})" if where else self.what


@dataclass
class Placements:
    """What was found for the nodes that the step has without its plan, too."""

    known: dict[Node, Placement | None] = field(default_factory=dict)
    comparable: set[Node] = field(default_factory=set)
    """Nodes whose shape is that of a placement, whatever their numbers are."""
    results: list[SharedValue | None] = field(default_factory=list)
    """The outputs of the graph."""

    def is_right(self, node: Node) -> bool:
        """Whether a node certainly holds what one device holds."""
        placement = self.known.get(node)
        return placement is not None and placement.factor == 1.0 and placement.is_telling

    def is_unplaced(self, node: Node) -> bool:
        """Whether a call has no counterpart without the plan, or holds something else."""
        return node.op == "call_function" and self.known.get(node) is None

    def is_certain(self, node: Node) -> bool:
        """Whether a node has the counterpart's shape in some placement, and its numbers in none."""
        return node in self.comparable and self.is_wrong(node)

    def is_wrong(self, node: Node) -> bool:
        """Whether a node holds something else, as far as can be seen."""
        placement = self.known.get(node)
        return placement is None or placement.factor != 1.0


def locate_fault(
    graph: StepGraph, planned: SimulatedRound, config: TrainerConfig, wrong: Iterable[OutputDifference]
) -> Blame | None:
    """The first node of a graph from which all is wrong up to the wrong outputs; None where no node is found."""
    placements = infer_placements(graph, planned, config)
    names = {(entry.kind, entry.name) for entry in wrong}
    ends = _find_ends(graph, lambda spec: (spec.kind, spec.name) in names)
    fine = _find_ends(graph, lambda spec: (spec.kind, spec.name) not in names and spec.kind is not OutputKind.METRIC)
    right = [node for node in placements.known if placements.is_right(node)]
    healthy = _find_ancestors([*fine, *right], is_certifying=True)
    suspects = _find_ancestors(ends) - healthy - _find_reductions(graph)
    wrong_nodes = [node for node in graph.nodes if node in suspects and _is_first(node, healthy, placements)]
    certain = next((node for node in wrong_nodes if placements.is_certain(node)), None)
    # A node without a counterpart is blamed for the first one that certainly differs, not for being computed earlier.
    before = set() if certain is None else _find_ancestors([certain])
    first = next((node for node in wrong_nodes if certain is None or node in before), None)
    if first is not None:
        return _blame_node(first, graph, placements, planned)
    return _blame_gradient(graph, placements, planned, names)


def _is_first(node: Node, healthy: Set[Node], placements: Placements) -> bool:
    """Whether a suspect computes something wrong, and reads nothing that is right in a way nobody can see."""
    if node.op != "call_function" or node.target in MOVES or not node.all_input_nodes or not placements.is_wrong(node):
        return False
    operands = [_find_origin(operand) for operand in node.all_input_nodes if _has_floats(operand)]
    return not any(operand in healthy and placements.is_unplaced(operand) for operand in operands)


def _find_ends(graph: StepGraph, is_wanted: Callable[[OutputSpec], bool]) -> list[Node]:
    """The nodes of some outputs."""
    pairs = zip(graph.outputs, graph.results, strict=True)
    return [node for spec, node in pairs if node is not None and is_wanted(spec)]


def _find_reductions(graph: StepGraph) -> set[Node]:
    """Gathers of parameters, and sums of finished gradients with what follows from them: these have no placement."""
    found: set[Node] = set()
    gathers: set[Node] = set()
    for node in graph.nodes:
        tag = find_tag(node)
        role = None if tag is None else tag.role
        if role is Role.PARAM_ALL_GATHER:
            gathers.add(node)
        elif role is Role.GRAD_REDUCE_SCATTER or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found | gathers


def _blame_gradient(
    graph: StepGraph, placements: Placements, planned: SimulatedRound, names: set[tuple[OutputKind, str]]
) -> Blame | None:
    """An output that is wrong although all that it is computed from is right: a sum over ranks is."""
    metrics = [
        spec.name for spec in graph.outputs if spec.kind is OutputKind.METRIC and (spec.kind, spec.name) in names
    ]
    metric = next(iter(metrics), "")
    if metric:
        what = f"{metric} is what each micro-batch gives alone: no sum over the ranks that share its statistic"
        return Blame(what=what, path=metric)
    for spec, node in zip(graph.outputs, graph.results, strict=True):
        if node is None or spec.kind is not OutputKind.GRADIENT or (spec.kind, spec.name) not in names:
            continue
        reason = _explain_gradient(spec.name, graph, placements, planned)
        what = reason or f"the gradient of {spec.name} is not what one device has, though all it is computed from is"
        source = next((line for line in map(source_of, _walk_up(node)) if line), "")
        return Blame(what=what, path=spec.name.rpartition(".")[0], source=source, node=node.name)
    return None


def infer_placements(graph: StepGraph, planned: SimulatedRound, config: TrainerConfig) -> Placements:
    """The placements of all nodes that the step has without its plan, too."""
    mesh, found = planned.coordinates.mesh, Placements()
    alone = config.replace(parallelism=ParallelismConfig())
    with fake_groups(Mesh(), 0, torch.device("cpu")) as groups:
        source, _ = build_source(alone, groups)
        other = capture(source, make_example(alone, source))
    partners = align_nodes(graph, other)
    wanted = set(partners.values())
    wholes: dict[Node, list[Any]] = {node: [] for node in wanted}

    def keep(node: Node, value: SharedValue) -> None:
        if node in wanted:
            wholes[node].append(value.at(0))

    machine = GraphMachine(other, Coordinates(Mesh()))
    for number in planned.dealt[:MOST_PARTS]:
        machine.run(planned.make_inputs(source, machine.coordinates, [number]).bind, keep)

    def place(node: Node, value: SharedValue) -> None:
        if node in partners:
            rows = config.training.local_batch_size
            found.known[node] = find_placement(value, wholes[partners[node]], mesh, rows=rows)
            if has_way(value, wholes[partners[node]][0], mesh, rows=rows):
                found.comparable.add(node)

    found.results = GraphMachine(graph, planned.coordinates).run(planned.make_inputs().bind, place).results
    return found


def _find_ancestors(nodes: Iterable[Node], *, is_certifying: bool = False) -> set[Node]:
    """The nodes, and all that they are computed from; with `is_certifying` only what must be right where they are."""
    found: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if node.target in READS_SHAPE or (is_certifying and node.target is SELECT and not _is_read_whole(node, found)):
            continue
        is_choice = is_certifying and not _has_floats(node)
        waiting += [operand for operand in node.all_input_nodes if not (is_choice and _has_floats(operand))]
    return found


def _has_floats(node: Node) -> bool:
    """Whether a node yields floating-point numbers; integers chosen by them may be right where they are not."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(entry, Tensor) and entry.is_floating_point() for entry in values)


def _is_read_whole(node: Node, found: Set[Node]) -> bool:
    """Whether found nodes together select all of an operand."""
    operand, dim = node.args[:2]
    assert isinstance(operand, Node) and isinstance(dim, int)
    places = {user.args[2] for user in operand.users if user in found and user.target is SELECT and user.args[1] == dim}
    return len(places) == operand.meta["val"].shape[dim]


def _blame_node(node: Node, graph: StepGraph, placements: Placements, planned: SimulatedRound) -> Blame:
    """What is wrong with the first wrong node."""
    mesh, tag = planned.coordinates.mesh, find_tag(node)
    given = [placements.known.get(_find_origin(operand)) for operand in node.all_input_nodes]
    known = [placement for placement in given if placement is not None]
    partial = " and ".join(dict.fromkeys(axis for placement in known for axis in placement.partial_axes))
    slot, own = _find_gradient(node, graph), placements.known.get(node)
    held = " and ".join(dict.fromkeys(placement.describe(mesh) for placement in known))
    reason = _explain_gradient(slot, graph, placements, planned) if slot else ""
    if node.target in COLLECTIVES:
        what = f"{_short(node)} over {node.args[-1]} of what is {held or 'not on one device'} gives other numbers"
        what = reason or what
    elif reason:
        what = reason
    elif partial:
        what = f"partial over {partial} reaches {slot or _short(node)}: no all_reduce over {partial}"
    else:
        what = f"{_short(node)} gives other numbers than on one device" + (f", for {slot}" if slot else "")
    if own is not None and own.factor != 1.0:
        what += f", {own.factor:.6g} times as large"
    path = (tag.path if tag else "") or slot.rpartition(".")[0]
    return Blame(what=what, path=path, source=source_of(node), node=node.name)


def _find_origin(node: Node) -> Node:
    """The node whose numbers these are: ops that only move or name them are followed upwards."""
    while node.target in MOVES and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _walk_up(node: Node) -> Iterable[Node]:
    """A node, and what it is computed from, by its first operand."""
    while node.op == "call_function":
        yield node
        if not node.all_input_nodes:
            return
        node = node.all_input_nodes[0]


def _short(node: Node) -> str:
    return str(node.target).removeprefix("aten.").removeprefix("_c10d_functional.").removesuffix(".default")


def _find_gradient(node: Node, graph: StepGraph) -> str:
    """The parameter whose gradient is all that follows from a node; empty where more does."""
    ends = {end: spec for spec, end in zip(graph.outputs, graph.results, strict=True) if end is not None}
    seen, waiting, found = set(), [node], set()
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        if each in ends:
            found.add(ends[each].name if ends[each].kind is OutputKind.GRADIENT else "")
        waiting += [user for user in each.users if user.op != "output"]
    return found.pop() if len(found) == 1 else ""


def _explain_gradient(slot: str, graph: StepGraph, placements: Placements, planned: SimulatedRound) -> str:
    """Which sum would make a wrong gradient right, or what it is multiplied by; empty where neither is found."""
    coordinates, table = planned.coordinates, planned.source.table
    specs = [(spec.kind, spec.name) for spec in graph.outputs]
    value = placements.results[specs.index((OutputKind.GRADIENT, slot))]
    if value is None:
        return ""
    whole = planned.expected.gradients[table[slot].name]
    for group in (Group.TP, Group.CP, Group.DP_REPLICATE, Group.FSDP_SCATTER, Group.EP, Group.ETP):
        if coordinates.mesh.group_size(group) == 1:
            continue
        summed = sum_over(value, group, coordinates)
        if compare_shards(table[slot], summed, whole, coordinates)[0] < NOISE:
            axis = group.value.removesuffix("_scatter")
            return f"partial over {axis} reaches {slot}: no all_reduce over {axis}"
    ratio = _find_ratio(table[slot], value, whole)
    return "" if ratio is None else f"the gradient of {slot} is {ratio:.6g} times as large as on one device"


def sum_over(value: SharedValue, group: Group, coordinates: Coordinates) -> SharedValue:
    """What an all_reduce over a group would leave."""
    part = coordinates.exchange(value.part, group, by_place=False)
    members = coordinates.members(group)
    return SharedValue(part, [sum(value.at(rank) for rank in members[first]) for first in part.firsts])


def _find_ratio(slot: Slot, value: SharedValue, whole: Tensor) -> float | None:
    """The factor between rank 0's shard and what it should be, where there is one."""
    ours, wanted = slot.valid_part(value.at(0), 0), slot.valid_part(slot.take_shard(whole, 0), 0)
    size = float(wanted.square().sum())
    ratio = float((ours * wanted).sum()) / size if size else 0.0
    return ratio if ratio and largest(ours - ratio * wanted) < NOISE * largest(ours) else None
