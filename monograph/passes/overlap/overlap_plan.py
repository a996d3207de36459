"""A schedule that overlaps chunks' all_to_alls with compute, found by simulating the step with a cost model.

Chunks take turns. A turn is everything one chunk needs to launch its next exchange, with the wait for its last one as
late as it can be. So chunk 1 computes during chunk 0's all_to_all, and with whole blocks chunked the next block's
chunk 0 runs under this block's last exchange. Where compute would still wait, work that nothing waits for yet (weight
gradients, shared experts) fills the gap, as much of it as the gap is long.

A pipeline stage runs as several programs at different times: only work of the same program can fill a gap.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from torch.fx import Node

from monograph.annotate import Direction
from monograph.compat.ops import WAIT_TENSOR
from monograph.graph.cost import NodeCosts
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import is_compute, is_launch, is_wait, value_of
from monograph.graph.refuse import broken
from monograph.graph.tags import tag_of
from monograph.passes.overlap.simulate import SimulatedSchedule, is_exchange, play


def plan_overlap(
    nodes: Sequence[Node],
    costs: NodeCosts,
    sizes: LikelySizes,
    max_extra_bytes: int,
    programs: Mapping[Node, int] | None = None,
) -> SimulatedSchedule:
    """The best order found; the present one when no other would be faster.

    `programs` numbers the programs that nodes run in, in their order; without it all run in one.
    """
    numbers = programs or {}
    best = play(sorted(nodes, key=lambda node: numbers.get(node, 0)) if programs else nodes, costs)
    while True:
        found = ScheduleBuilder(best.order, costs, sizes, max_extra_bytes, numbers).run()
        if found.now >= best.now * 0.999:
            return best
        best = found


class ScheduleBuilder:
    """Builds an order turn by turn."""

    def __init__(
        self,
        nodes: Sequence[Node],
        costs: NodeCosts,
        sizes: LikelySizes,
        max_extra_bytes: int,
        programs: Mapping[Node, int],
    ) -> None:
        self.programs, self.program = programs, 0
        self.nodes, self.sizes, self.max_extra_bytes = nodes, sizes, max_extra_bytes
        self.indices = {node: index for index, node in enumerate(nodes)}
        self.played = SimulatedSchedule(costs)
        self.done: set[Node] = set()
        self.waiting = [node for node in nodes if is_compute(node) and tag_of(node).chunk is None]
        """Nodes of no chunk: they keep their place in front of the first chunk that passes it."""
        self.next_waiting = 0
        self.blocked: list[Node] = []
        """Nodes whose place was passed before they could run."""
        self.spare: list[Node] = []
        """Nodes of chunks that could run and that nothing needs yet."""
        self.early: list[Node] = []
        """Nodes that ran before their turn."""
        self.due: dict[Node, int] = {}
        self.front = 0
        self.needed: set[Node] = set()

    def run(self) -> SimulatedSchedule:
        """The whole step: forward, then backward."""
        for node in self.nodes:
            if not is_compute(node) and node.op != "output":
                self.emit(node)
        for direction in Direction:
            rounds = find_rounds(self.nodes, direction)
            self.needed = find_ancestors([launch for each in rounds for launch in each])
            for launches in rounds:
                for launch in launches:
                    self.emit_until_launch(launch)
            self.finish(direction)
        for node in self.nodes:
            if node not in self.done:
                self.emit(node)
        return self.played

    def emit_until_launch(self, launch: Node) -> None:
        """Run what a launch needs: first what waits for no rows, then the rest."""
        self.program = self.programs.get(launch, 0)
        closure = self.find_missing([launch])
        late: set[Node] = set()
        for node in closure:
            if is_row_wait(node) or not late.isdisjoint(node.all_input_nodes):
                late.add(node)
        for node in (*(n for n in closure if n not in late), *(n for n in closure if n in late)):
            self.emit_unchunked_before(self.indices[node])
            self.run_node(node)
        self.release()

    def finish(self, direction: Direction) -> None:
        """What is left of one half of the step, in order."""
        for node in self.nodes:
            if node not in self.done and node.op != "output" and tag_of(node).direction is direction:
                self.program = self.programs.get(node, 0)
                for each in self.find_missing([node]):
                    self.front = max(self.front, self.indices[each])
                    self.run_node(each)
        self.blocked = [node for node in self.blocked if node not in self.done]

    def run_node(self, node: Node) -> None:
        """Run a node now; in front of a wait for rows, run something else until they arrive."""
        if node in self.done:
            return
        if is_row_wait(node):
            self.emit_filler(node.args[0])
        self.emit(node)

    def emit(self, node: Node) -> None:
        self.done.add(node)
        self.played.add(node)
        if is_launch(node):
            for wait in node.users:
                if wait.target is WAIT_TENSOR:
                    self.due[wait] = self.front + self.indices[wait] - self.indices[node]
        for user in node.users:
            if self.is_ready_filler(user):
                self.spare.append(user)

    def is_ready_filler(self, node: Node) -> bool:
        """Whether a chunk's node could run, and is neither the start nor the end of a collective."""
        if tag_of(node).chunk is None or not is_compute(node) or node in self.done or is_launch(node) or is_wait(node):
            return False
        if self.programs.get(node, 0) != self.program:
            return False
        return all(each in self.done or self.is_ready_unchunked(each) for each in node.all_input_nodes)

    def is_ready_unchunked(self, node: Node) -> bool:
        """Whether a node of no chunk, say a transposed weight, could run right now."""
        if tag_of(node).chunk is not None or is_launch(node) or is_wait(node):
            return False
        return all(each in self.done or self.is_ready_unchunked(each) for each in node.all_input_nodes)

    def emit_filler(self, launch: Any) -> None:
        """Run spare work under a collective: what nothing will need first, then what a later turn needs, if it fits."""
        while self.played.gap(launch) > 0:
            self.spare = [node for node in dict.fromkeys(self.spare) if node not in self.done]
            free = [node for node in self.spare if node not in self.needed]
            choice = min(free or filter(self.fits, self.spare), key=self.indices.__getitem__, default=None)
            if choice is None:
                return
            self.early += [choice] if choice in self.needed else []
            for node in self.find_missing([choice]):
                self.emit(node)

    def fits(self, node: Node) -> bool:
        """Whether running a node early keeps within the bound on memory: its value lives until its turn."""
        self.early = [each for each in self.early if any(user not in self.done for user in each.users)]
        return sum(self.sizes.bytes(value_of(each)) for each in (*self.early, node)) <= self.max_extra_bytes

    def emit_unchunked_before(self, index: int) -> None:
        """Run the nodes of no chunk that stand before a place."""
        self.front = max(self.front, index)
        while self.next_waiting < len(self.waiting) and self.indices[self.waiting[self.next_waiting]] < index:
            node = self.waiting[self.next_waiting]
            self.next_waiting += 1
            self.blocked.append(node)
            self.release_if_ready(node)

    def release(self) -> None:
        """After a turn: run what was passed and can run by now, and spare work that holds too much memory."""
        for node in [node for node in self.blocked if node not in self.done]:
            self.release_if_ready(node)
        self.blocked = [node for node in self.blocked if node not in self.done]
        self.spare = [node for node in dict.fromkeys(self.spare) if node not in self.done]
        free = [node for node in self.spare if node not in self.needed]
        for node in sorted(free, key=self.indices.__getitem__):
            if self.played.costs.seconds.get(node, 0.0) == 0.0 or self.count_held(free) > self.max_extra_bytes:
                for each in self.find_missing([node]):
                    self.emit(each)
                free = [each for each in free if each not in self.done]

    def count_held(self, nodes: Sequence[Node]) -> int:
        """Bytes that live only because these nodes have not run yet."""
        read = {each for node in nodes for each in node.all_input_nodes}
        late = set(nodes)
        return sum(
            self.sizes.bytes(value_of(each))
            for each in read
            if is_compute(each) and all(user in self.done or user in late for user in each.users)
        )

    def release_if_ready(self, node: Node) -> None:
        is_due = not is_wait(node) or self.due.get(node, 0) <= self.front
        if is_due and not is_row_wait(node) and all(each in self.done for each in node.all_input_nodes):
            self.run_node(node)

    def find_missing(self, wanted: Iterable[Node]) -> list[Node]:
        """The nodes and all they depend on that have not run yet, in order."""
        found: set[Node] = set()
        todo = list(wanted)
        while todo:
            node = todo.pop()
            if node not in found and node not in self.done:
                found.add(node)
                todo += node.all_input_nodes
        return sorted(found, key=self.indices.__getitem__)


def is_row_wait(node: Node) -> bool:
    """Whether a node waits for rows of a chunk."""
    return is_wait(node) and is_exchange(node.args[0]) and tag_of(node).chunk is not None


def find_rounds(nodes: Sequence[Node], direction: Direction) -> list[list[Node]]:
    """Round by round the exchange each chunk launches, in the order chunks take turns: backward the last one first."""
    chunks: dict[int, list[Node]] = {}
    for node in nodes:
        tag = tag_of(node)
        if is_exchange(node) and tag.chunk is not None and tag.direction is direction:
            chunks.setdefault(tag.chunk, []).append(node)
    turns = [chunks[chunk] for chunk in sorted(chunks, reverse=direction is Direction.BACKWARD)]
    lengths = {len(launches) for launches in turns}
    if len(lengths) > 1:
        shortest = min(turns, key=len)
        raise broken(
            shortest[-1],
            f"chunks launch {sorted(lengths)} exchanges, {direction.value}",
            why="chunks do the same work, so that they can take turns",
        )
    return [list(launches) for launches in zip(*turns, strict=True)]


def find_ancestors(nodes: Collection[Node]) -> set[Node]:
    """The nodes and everything they depend on."""
    found: set[Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found
