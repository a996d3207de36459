"""What a capture promises and passes must keep: which groups every parameter, gradient and module communicates over.

A graph whose collective went missing, or runs over the wrong ranks, is as well-formed as the right one. So capture
writes down what it found, and the same finding after each pass has to agree.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from torch.fx import Node

from monograph.annotate import Role
from monograph.compat.ops import ALL_REDUCE, REDUCE_SCATTER
from monograph.graph.facts import Facts
from monograph.graph.gradient_paths import (
    SUMS,
    GradientPaths,
    find_gradient_paths,
    is_pack,
    is_value_preserving,
    ranks_of,
    reads_shape_only,
)
from monograph.graph.query import group_of, is_backward, is_compute, is_launch, value_of
from monograph.graph.refuse import broken
from monograph.graph.signature import PARAMETERS, InputKind, OutputKind
from monograph.graph.step_graph import CommunicationInvariants, StepGraph
from monograph.graph.tags import set_tag, tag_of

_OF_PARAMETERS = (Role.PARAM_ALL_GATHER, Role.PARAM_AMAX, Role.GRAD_REDUCE_SCATTER)


def find_communication_invariants(graph: StepGraph) -> CommunicationInvariants:
    """What is true of a graph as it stands: taken from a capture, before any pass."""
    nodes = graph.nodes
    flows = find_gradient_paths(nodes, find_states(graph))
    gathers: dict[str, frozenset[str]] = defaultdict(frozenset)
    readers: dict[str, frozenset[str]] = defaultdict(frozenset)
    for reader in flows.readers:
        gathers[reader.parameter.slot] |= reader.parameter.groups
        readers[reader.parameter.slot] |= {tag_of(reader.node).path}
    gradients = {slot: flows.of_gradient(node) for slot, node in find_gradients(graph)}
    alive = find_alive(nodes)
    counts: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for node in find_other_launches(nodes):
        counts[_key(node)] += node in alive
    return CommunicationInvariants(
        gathers=dict(gathers),
        readers=dict(readers),
        sums={slot: flow.groups for slot, flow in gradients.items()},
        sources={slot: flow.paths for slot, flow in gradients.items()},
        dtypes=tuple(value_of(node).dtype for node in graph.results if node is not None),
        collectives=dict(counts),
        coordinate_readers=find_coordinate_readers(graph, nodes, alive),
    )


def with_chunks(kept: CommunicationInvariants, is_cut: Callable[[str], bool], count: int) -> CommunicationInvariants:
    """The properties of a graph whose modules of some paths run once per chunk: so do their collectives."""
    collectives = {key: times * count if is_cut(key[0]) else times for key, times in kept.collectives.items()}
    return replace(kept, collectives=collectives)


def check_properties(graph: StepGraph, nodes: Sequence[Node], facts: Facts) -> None:
    """Refuse a graph in which a parameter, gradient or module communicates with other ranks than when captured."""
    flows = find_gradient_paths(nodes, find_states(graph))
    kept = graph.properties
    if kept is None:
        return
    _check_readers(flows, kept, facts)
    for slot, node in find_gradients(graph):
        _check_gradient(slot, node, flows, kept, facts)
    for spec, result, dtype in zip(graph.outputs, graph.results, kept.dtypes, strict=True):
        if result is not None and value_of(result).dtype != dtype:
            name = " of ".join(part for part in (spec.kind.value, spec.name) if part)
            found = value_of(result).dtype
            raise broken(result, f"the {name} was captured as {dtype} and is {found}", why="the optimizer relies on it")
    alive = find_alive(nodes)
    _check_collectives(nodes, alive, kept, facts)
    missing = kept.coordinate_readers - find_coordinate_readers(graph, nodes, alive)
    if missing and not _has_regions(nodes):
        raise broken(
            graph.placeholders[[spec.kind for spec in graph.inputs].index(InputKind.COORDS)],
            f"{', '.join(sorted(missing))} no longer reads its rank's coordinates in the mesh",
            why="coordinates that do not come from the input coords are one rank's, and all ranks run the same graph",
        )


def _check_readers(flows: GradientPaths, kept: CommunicationInvariants, facts: Facts) -> None:
    for reader in flows.readers:
        slot, path = reader.parameter.slot, tag_of(reader.node).path
        wanted, found = (_large(each, facts) for each in (kept.gathers.get(slot, ()), reader.parameter.groups))
        if wanted != found:
            raise broken(
                reader.node,
                f"{slot} is used after a gather from {_listed(found)}; it was captured from {_listed(wanted)}",
                why="without all ranks' shards, a module computes with part of its parameter",
            )
        if path and not any(known == path or known.startswith(f"{path}.") for known in kept.readers.get(slot, ())):
            raise broken(
                reader.node,
                f"{path} computes with {slot}, which it did not at capture",
                why="each module uses its own parameters",
            )


def _check_gradient(slot: str, node: Node, flows: GradientPaths, kept: CommunicationInvariants, facts: Facts) -> None:
    flow = flows.of_gradient(node)
    if not flow.is_known:
        return
    if flow.slot and flow.slot != slot:
        raise broken(node, f"the gradient of {slot} is that of {flow.slot}", why="gradients were exchanged")
    wanted, found = (_large(each, facts) for each in (kept.sums.get(slot, ()), flow.groups))
    if wanted != found:
        raise broken(
            node,
            f"the gradient of {slot} is summed over {_listed(found)}; it was captured as a sum over {_listed(wanted)}",
            why="a sum that is left out loses the other ranks' share, one too many counts it twice",
        )
    lost = [
        source
        for source in kept.sources.get(slot, ())
        if flow.paths and not any(_is_related(source, path) for path in flow.paths)
    ]
    if lost:
        raise broken(
            node,
            f"the gradient of {slot} comes from {_listed(flow.paths)}; at capture it came from {_listed(lost)} too",
            why="a parameter's gradient is the sum over all modules that use it, and over no others",
        )


def _check_collectives(nodes: Sequence[Node], alive: set[Node], kept: CommunicationInvariants, facts: Facts) -> None:
    known = {(path, what, ranks) for path, _, what, ranks in kept.collectives}
    counts: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for node in find_other_launches(nodes):
        path, direction, what, ranks = _key(node)
        if path and (path, what, ranks) not in known:
            raise broken(
                node,
                f"{path} does {what} over {group_of(node)}, which it did not at capture",
                why="the ranks a module communicates with are part of what it computes",
            )
        counts[path, direction, what, ranks] += node in alive
    if _has_regions(nodes):
        return
    for key, wanted in kept.collectives.items():
        if _large([key[-1]], facts) and counts[key] < wanted:
            path, direction, what, ranks = key
            raise broken(
                next((node for node in nodes if tag_of(node).path == path and is_compute(node)), nodes[0]),
                f"{path}, {direction}: {wanted} times {what} over {ranks} at capture, now {counts[key]}",
                why="other ranks' share of a value is lost, or they wait forever",
            )


def mark_gradients(graph: StepGraph) -> None:
    """Tag what gradients are made of: back from each output through moves, collectives and sums to their ops.

    Without it, nothing but order would tell two gradients of one module apart once their collectives are gone.
    """
    owners: dict[Node, set[str]] = defaultdict(set)
    for slot, result in find_gradients(graph):
        todo = [result]
        while todo:
            node = todo.pop()
            if slot in owners[node]:
                continue
            owners[node].add(slot)
            if node.target in SUMS or is_value_preserving(node.target) or is_pack(node) or is_launch(node):
                todo += [each for each in node.all_input_nodes if is_backward(each) and is_compute(each)]
    for node, slots in owners.items():
        is_only_that = all(user in owners or user.op == "output" for user in node.users)
        if len(slots) == 1 and is_only_that:
            set_tag(node, replace(tag_of(node), gradient_of=next(iter(slots))))


def find_states(graph: StepGraph) -> dict[Node, str]:
    """The placeholders of the parameters, with their slots."""
    pairs = zip(graph.placeholders, graph.inputs, strict=True)
    return {node: spec.name for node, spec in pairs if spec.kind in PARAMETERS}


def find_gradients(graph: StepGraph) -> list[tuple[str, Node]]:
    """Slot and node of every gradient."""
    pairs = zip(graph.outputs, graph.results, strict=True)
    return [(spec.name, node) for spec, node in pairs if spec.kind is OutputKind.GRADIENT and node is not None]


def find_alive(nodes: Sequence[Node]) -> set[Node]:
    """The nodes that an output depends on."""
    alive: set[Node] = set()
    for node in reversed(nodes):
        if node.op == "output" or not alive.isdisjoint(node.users):
            alive.add(node)
    return alive


def find_other_launches(nodes: Iterable[Node]) -> list[Node]:
    """The collectives that belong to modules: all but those of parameters and gradients."""
    return [node for node in nodes if is_launch(node) and tag_of(node).role not in _OF_PARAMETERS]


def find_coordinate_readers(graph: StepGraph, nodes: Sequence[Node], alive: set[Node]) -> frozenset[str]:
    """The modules that use this rank's coordinates: values computed from the input coords and constants alone."""
    coordinates = {
        node for node, spec in zip(graph.placeholders, graph.inputs, strict=True) if spec.kind is InputKind.COORDS
    }
    paths = set()
    for node in nodes:
        if not is_compute(node) or reads_shape_only(node) or coordinates.isdisjoint(node.all_input_nodes):
            continue
        if all(each in coordinates for each in node.all_input_nodes):
            coordinates.add(node)
        elif node in alive:
            paths.add(tag_of(node).path)
    return frozenset(paths)


def _key(launch: Node) -> tuple[str, str, str, str]:
    tag = tag_of(launch)
    what = str(launch.target).split(".")[1]
    if launch.target in (ALL_REDUCE, REDUCE_SCATTER):
        what = f"{what} of {launch.args[1]}"
    return tag.path, tag.direction.value, what, ranks_of(group_of(launch))


def _large(groups: Iterable[str], facts: Facts) -> frozenset[str]:
    """The groups of more than one rank; collectives over one rank come and go."""
    return frozenset(group for group in groups if facts.group_sizes.get(group, 0) != 1)


def _has_regions(nodes: Iterable[Node]) -> bool:
    return any(node.op == "call_module" for node in nodes)


def _is_related(one: str, other: str) -> bool:
    """Whether one module is the other or holds it."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no group"
