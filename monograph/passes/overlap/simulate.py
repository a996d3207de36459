"""A schedule played through with a cost model: what each all_to_all of rows takes, and what lies under it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from monograph.annotate import Role
from monograph.axes import SAME_LINK
from monograph.compat.ops import ALL_TO_ALL
from monograph.graph.cost import NodeCosts
from monograph.graph.query import group_of, is_launch, is_wait
from monograph.graph.tags import tag_of

MICROSECOND = 1e-6


@dataclass(frozen=True)
class Window:
    """One all_to_all of rows: how long it takes, and what compute does meanwhile."""

    launch: Node
    bytes: int
    seconds: float
    under_seconds: float
    """Compute between its launch and its wait."""
    exposed_seconds: float
    """How long compute waits for it."""

    def text(self) -> str:
        """One line of the printed plan."""
        tag = tag_of(self.launch)
        where = f"{tag.path} {tag.direction.value} {tag.region} chunk {tag.chunk}"
        times = (self.seconds, self.under_seconds, self.exposed_seconds)
        shown = [f"{seconds / MICROSECOND:.1f}" for seconds in times]
        return f"{where}: {self.bytes} bytes, {shown[0]} us, {shown[1]} us of compute under it, {shown[2]} us exposed"


@dataclass
class SimulatedSchedule:
    """A schedule with what it would cost: nodes in order, and the clocks after the last of them."""

    costs: NodeCosts
    order: list[Node] = field(default_factory=list)
    now: float = 0.0
    """When the last node so far has been computed."""
    busy: float = 0.0
    """Seconds spent computing, without waiting."""
    windows: list[Window] = field(default_factory=list)
    _ends: dict[Node, float] = field(default_factory=dict)
    _starts: dict[Node, float] = field(default_factory=dict)
    _free: dict[str, float] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        """Let a node run next."""
        self.order.append(node)
        takes = self.costs.seconds.get(node, 0.0)
        if is_launch(node):
            group = SAME_LINK.get(group_of(node), group_of(node))
            end = max(self.now, self._free.get(group, 0.0)) + takes
            self._ends[node], self._starts[node], self._free[group] = end, self.busy, end
        elif is_wait(node):
            self._end(node.args[0])
        else:
            self.now += takes
            self.busy += takes

    def _end(self, launch: Any) -> None:
        exposed = self.gap(launch)
        self.now += exposed
        if is_exchange(launch):
            moved, takes = self.costs.moved_bytes.get(launch, 0), self.costs.seconds.get(launch, 0.0)
            self.windows.append(Window(launch, moved, takes, self.busy - self._starts.get(launch, 0.0), exposed))

    def gap(self, launch: Any) -> float:
        """How long compute would wait for a collective now."""
        return max(0.0, self._ends.get(launch, 0.0) - self.now)

    @property
    def exposed_seconds(self) -> float:
        """How long compute waits for all_to_alls of rows, in all."""
        return sum(window.exposed_seconds for window in self.windows)


def is_exchange(node: Any) -> bool:
    """Whether a node sends rows to other ranks."""
    return isinstance(node, Node) and node.target is ALL_TO_ALL and tag_of(node).role is Role.TOKEN_ALL_TO_ALL


def play(nodes: Iterable[Node], costs: NodeCosts) -> SimulatedSchedule:
    """The schedule as it stands."""
    played = SimulatedSchedule(costs)
    for node in nodes:
        played.add(node)
    return played
