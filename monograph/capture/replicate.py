"""From a capture of three blocks that are identical to all of them: the second is copied once for every block left out.

Tracing an op costs a hundred times as much as copying its node. That the blocks are identical is known from their
modules (block_repeats.py) and checked here once more on the captured nodes: the second and the last must do the same,
op by op, on what comes from before, from their own parameters and from outside. Where they do not, the whole step is
captured.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from monograph.annotate import Direction
from monograph.capture.block_repeats import BlockRepeat
from monograph.capture.stacked import BlockStackEntries
from monograph.capture.symbols import SymbolMap, SymbolRenamer
from monograph.graph.edit import fake_mode
from monograph.graph.query import is_compute, value_of
from monograph.graph.tags import set_tag, tag_of
from monograph.parallel.shard import BlocksDiffer

BEFORE, HERE, AFTER = -1, 0, 1
"""Where a node stands as seen from a block."""
BlockNodes = list[Node]
"""The nodes of one direction of one block, in order."""


@dataclass(frozen=True)
class CapturedBlocks:
    """The nodes of every captured block, by number."""

    forward: dict[int, BlockNodes]
    backward: dict[int, BlockNodes]

    def of(self, direction: Direction) -> dict[int, BlockNodes]:
        """One direction of all blocks."""
        return self.backward if direction is Direction.BACKWARD else self.forward

    def names(self, number: int) -> SymbolMap:
        """The sizes a block reads from data."""
        return SymbolMap([*self.forward.get(number, []), *self.backward.get(number, [])])


def replicate_skipped_blocks(
    graph: Graph, names: Mapping[str, Node], gradients: dict[str, Node], runs: Sequence[BlockRepeat]
) -> None:
    """Put in the blocks that were left out; `names` has every input, `gradients` gets those of the new blocks."""
    halves = find_block_nodes(graph)
    stacked = BlockStackEntries(graph, halves.forward)
    mode = fake_mode(graph)
    known = []
    for run in runs:  # all are checked before anything is changed
        check_run(run, halves, names, stacked)
        known.append(halves.names(run.captured[1]).find_constraints(mode))
    for run, facts in zip(runs, known, strict=True):
        sizes = {number: SymbolRenamer(mode, facts) for number in run.skipped}
        replicate_block(graph, run, halves, names, gradients, sizes, stacked)


def find_block_nodes(graph: Graph) -> CapturedBlocks:
    """Nodes by block and direction; those of one half must stand together."""
    forward: dict[int, BlockNodes] = {}
    backward: dict[int, BlockNodes] = {}
    last: tuple[int | None, Direction] | None = None
    for node in graph.nodes:
        if not is_compute(node):
            continue
        tag = tag_of(node)
        place = tag.block, tag.direction
        if tag.block is not None:
            half = (backward if tag.direction is Direction.BACKWARD else forward).setdefault(tag.block, [])
            if half and place != last:
                raise BlocksDiffer(f"nodes of block {tag.block} are not contiguous, at {node.name}")
            half.append(node)
        last = place
    return CapturedBlocks(forward, backward)


def check_run(run: BlockRepeat, halves: CapturedBlocks, names: Mapping[str, Node], stacked: BlockStackEntries) -> None:
    """Check that the captured blocks of a run do the same."""
    slots = {node: name for name, node in names.items()}
    views = [
        BlockView(classify_arguments(halves, number, run.paths[number], slots, stacked), halves.names(number))
        for number in run.captured
    ]
    for direction in (Direction.FORWARD, Direction.BACKWARD):
        found = [halves.of(direction).get(number, []) for number in run.captured]
        if len(set(map(len, found))) != 1:
            raise BlocksDiffer(f"blocks {run.captured} have {list(map(len, found))} nodes, {direction}")
        for nodes in zip(*found, strict=True):
            check_alike(nodes, views)


def check_alike(nodes: Sequence[Node], views: Sequence["BlockView"]) -> None:
    """The same node of the first, the second and the last block.

    The first has something else before it, so what the second reads of it is compared with the last; the last has
    something else after it, so what comes back from there is compared with the first. All else must agree in all three.
    """
    if any(node.op != "call_function" for node in nodes):
        raise BlocksDiffer(f"{nodes[1].name} runs a graph of its own")
    first, second, last = (describe(node, view) for node, view in zip(nodes, views, strict=True))
    is_same = first.rest == second.rest == last.rest and len(first.args) == len(second.args) == len(last.args)
    if not is_same or not all(map(is_same_argument, first.args, second.args, last.args)):
        raise BlocksDiffer(f"{', '.join(node.name for node in nodes)} differ")


def is_same_argument(first: Any, second: Any, last: Any) -> bool:
    """Whether an argument is the same thing to its block in all three, as far as they can be compared."""
    step = second[0] if isinstance(second, tuple) else None
    return (step == BEFORE or second == first) and (step == AFTER or second == last)


def classify_arguments(
    halves: CapturedBlocks, number: int, path: str, slots: Mapping[Node, str], stacked: BlockStackEntries
) -> Callable[[Node], Any]:
    """What a node is to a block: its own, its neighbour's before or after it, its parameter, its entry, or common."""
    known: dict[Node, Any] = {}
    for step in (BEFORE, HERE, AFTER):
        for direction in (Direction.FORWARD, Direction.BACKWARD):
            near = find_neighbour(halves.of(direction), number, step)
            known |= {node: (step, direction, place) for place, node in enumerate(near)}
    prefix = f"{path}."

    def find(node: Node) -> Any:
        if node in known:
            return known[node]
        stack = stacked.source_of(node, number)
        if stack is not None:
            return "entry", stack
        slot = slots.get(node, "")
        return ("own", slot.removeprefix(prefix)) if slot.startswith(prefix) else node

    return find


def find_neighbour(halves: Mapping[int, BlockNodes], number: int, step: int) -> BlockNodes:
    """A block's own half, or that of the captured block before or after it."""
    numbers = sorted(halves)
    if number not in numbers:
        return []
    place = numbers.index(number) + step
    return halves[numbers[place]] if 0 <= place < len(numbers) else []


class BlockView(NamedTuple):
    """How a block sees its surroundings, so that two blocks can be compared."""

    find: Callable[[Node], Any]
    """What a node is to the block."""
    names: SymbolMap
    """Its sizes that depend on data."""


class NodeDescription(NamedTuple):
    """A node without its names."""

    rest: Any
    args: list[Any]


def describe(node: Node, view: BlockView) -> NodeDescription:
    """What a node does, and what each of its arguments is to its block."""
    read: list[Any] = []

    def put(each: Node) -> str:
        read.append(view.find(each))
        return "value"

    shape = torch.fx.node.map_arg((node.args, node.kwargs), put)
    form = view.names.describe(value_of(node))
    return NodeDescription((node.target, repr(shape), form, tag_of(node).role), read)


def replicate_block(
    graph: Graph,
    run: BlockRepeat,
    halves: CapturedBlocks,
    names: Mapping[str, Node],
    gradients: dict[str, Node],
    sizes: Mapping[int, SymbolRenamer],
    stacked: BlockStackEntries,
) -> None:
    """Copy the second block for every one between it and the last, first all forwards, then all backwards."""
    first, second, last = run.captured
    forward = {number: halves.forward[number] for number in run.captured}
    anchor = forward[last][0]
    for number in run.skipped:
        known = pair(forward[first], forward[number - 1])
        forward[number] = copy_block(graph, anchor, forward[second], number, run, names, known, sizes[number])
    redirect_users(forward[last], pair(forward[second], forward[last - 1]))
    stacked.fill(run, forward)
    if not halves.backward:
        return
    backward = {number: halves.backward[number] for number in run.captured}
    anchor = backward[second][0]
    redirect_users(backward[last], pair(forward[second], forward[last - 1]))
    for number in reversed(run.skipped):
        known = pair(forward[second], forward[number]) | pair(forward[first], forward[number - 1])
        known |= pair(backward[last], backward[number + 1]) | stacked.pair(second, number)
        backward[number] = copy_block(graph, anchor, backward[second], number, run, names, known, sizes[number])
    redirect_users(backward[second], pair(backward[last], backward[second + 1]))
    indices = {node: place for place, node in enumerate(backward[second])}
    for slot, node in list(gradients.items()):
        if node in indices and is_in_block(slot, run.paths[second]):
            for number in run.skipped:
                gradients[rename(slot, run.paths[second], run.paths[number])] = backward[number][indices[node]]


def pair(old: Iterable[Node], new: Iterable[Node]) -> dict[Node, Node]:
    """Node by node."""
    return dict(zip(old, new, strict=True))


def copy_block(
    graph: Graph,
    anchor: Node,
    nodes: BlockNodes,
    number: int,
    run: BlockRepeat,
    names: Mapping[str, Node],
    known: dict[Node, Node],
    sizes: SymbolRenamer,
) -> BlockNodes:
    """The nodes once more before `anchor`, for another block: with its parameters, and others as `known` says."""
    old, new = run.paths[run.captured[1]], run.paths[number]
    own = {node: names[rename(name, old, new)] for name, node in names.items() if is_in_block(name, old)}
    mapped = known | own
    copies = []
    for node in nodes:
        with graph.inserting_before(anchor):
            copy = graph.node_copy(node, lambda each: mapped.get(each, each))
        sizes.apply(copy, node)
        tag = tag_of(node)
        path, slot = rename(tag.path, old, new), rename(tag.slot, old, new)
        set_tag(copy, replace(tag, path=path, slot=slot, unit=new, block=number))
        mapped[node] = copy
        copies.append(copy)
    return copies


def redirect_users(nodes: BlockNodes, known: Mapping[Node, Node]) -> None:
    """Let nodes read the copies instead of the originals."""
    for node in nodes:
        for each in node.all_input_nodes:
            if each in known:
                node.replace_input_with(each, known[each])


def is_in_block(name: str, path: str) -> bool:
    """Whether a path or slot lies in the block at `path`."""
    return name == path or name.startswith(f"{path}.")


def rename(name: str, old: str, new: str) -> str:
    """The same place in another block."""
    return f"{new}{name.removeprefix(old)}" if is_in_block(name, old) else name
