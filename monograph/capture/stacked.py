"""Values that a step stacks over its blocks, one entry a block: a copied block has its own entry, and its gradient.

While blocks are left out, the entries of the missing ones hold what the block before them returned (FsdpUnitRunner), so
every shape is that of the whole step. Copies take their entries here; in backward they read their select of the
stack's gradient.
"""

from collections.abc import Iterable, Mapping, Sequence

from torch.fx import Graph, Node

from monograph.capture.block_repeats import BlockRepeat
from monograph.compat.ops import ATEN
from monograph.graph.query import is_backward
from monograph.graph.tags import tag_of


class BlockStackEntries:
    """The entries that blocks have in the stacks of a step, and the selects that split the stacks' gradients."""

    def __init__(self, graph: Graph, forward: Mapping[int, Sequence[Node]]) -> None:
        self.stacks = [
            node for node in graph.find_nodes(op="call_function", target=ATEN.stack.default) if _is_step(node)
        ]
        selects = graph.find_nodes(op="call_function", target=ATEN.select.int)
        self.selects = {(node.args[0], node.args[2]): node for node in selects if _is_gradient(node)}
        self.positions = {number: found for number, half in forward.items() if (found := self._find(half)) is not None}

    def _find(self, half: Iterable[Node]) -> int | None:
        """The position of a block's values; the same in every stack, because blocks come in order."""
        inside = set(half)
        for stack in self.stacks:
            for position, item in enumerate(_items(stack)):
                if item in inside:
                    return position
        return None

    def source_of(self, node: Node, number: int) -> Node | None:
        """The stack's gradient whose select at the block's own position this node is."""
        position = self.positions.get(number)
        if position is None or self.selects.get((node.args[0] if node.args else None, position)) is not node:
            return None
        return node.args[0]

    def fill(self, run: BlockRepeat, forward: Mapping[int, Sequence[Node]]) -> None:
        """Put the values of the run's copied blocks at their positions."""
        second = run.captured[1]
        index = {node: place for place, node in enumerate(forward[second])}
        for stack in self.stacks:
            items = _items(stack)
            position = next((place for place, item in enumerate(items) if item in index), None)
            if position is None:
                continue
            stand_ins = [items[position + number - second] for number in run.skipped]
            for number in run.skipped:
                items[position + number - second] = forward[number][index[items[position]]]
            stack.args = (items, *stack.args[1:])
            for item in dict.fromkeys(stand_ins):
                erase_unused_detaches(item)

    def pair(self, old: int, new: int) -> dict[Node, Node]:
        """The selects of one block -> those of another."""
        if old not in self.positions:
            return {}
        at = self.positions[old]
        return {
            node: self.selects[source, at + new - old]
            for (source, place), node in self.selects.items()
            if place == at and (source, at + new - old) in self.selects
        }


def erase_unused_detaches(node: Node) -> None:
    """Remove what only detached a value for an entry that is filled now."""
    while node.target is ATEN.detach.default and not node.users:
        source: Node = node.args[0]  # type: ignore[assignment]
        node.graph.erase_node(node)
        node = source


def _items(stack: Node) -> list[Node]:
    return list(stack.args[0])  # type: ignore[arg-type]


def _is_step(node: Node) -> bool:
    return tag_of(node).block is None


def _is_gradient(node: Node) -> bool:
    return is_backward(node) and _is_step(node) and not node.args[1]
