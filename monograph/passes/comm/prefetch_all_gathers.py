"""Prefetch: overlap all_gathers and reduce_scatters with the compute of another block."""

from dataclasses import dataclass
from itertools import groupby, pairwise

from torch.fx import Node

from monograph.annotate import Role
from monograph.axes import Axis
from monograph.compat.ops import ALL_GATHER, REDUCE_SCATTER
from monograph.graph.facts import Facts
from monograph.graph.query import wait_of
from monograph.graph.schedule import find_early_readers, find_late_arguments, move_after, move_before
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.passes.base import Pass
from monograph.passes.comm.prefetch_all_gathers_options import PrefetchAllGathersConfig
from monograph.plurals import counted


@dataclass(frozen=True)
class Move:
    """Nodes that go to another place."""

    anchor: Node
    nodes: tuple[Node, ...]


class PrefetchAllGathers(Pass):
    """Start a block's gather while the block before it computes; wait for a block's scatter after the next one started.

    Before:  w1 = wait(gather(p1));  block 1;  g2 = gather(p2);  w2 = wait(g2);  block 2
    After:   g1 = gather(p1);  g2 = gather(p2);  w1 = wait(g1);  block 1;  w2 = wait(g2);  block 2
    Why:     a collective that starts when its result is needed leaves the device idle. Only these and what they need
             move; the parameters of one more block are held meanwhile.
    """

    Config = PrefetchAllGathersConfig

    def skip(self, facts: Facts) -> str:
        axes = (Axis.FSDP, Axis.EFSDP)
        return "" if any(facts.degree(axis) > 1 for axis in axes) else "no axis shards parameters"

    def run(self, graph: StepGraph, facts: Facts) -> str:
        earlier, later = plan_gathers(graph, self.config.ahead), plan_scatter_waits(graph)
        for move in earlier:
            move_before(move.anchor, move.nodes)
        for move in later:
            move_after(move.anchor, move.nodes)
        started = f"all_gathers of {counted(len(earlier), 'block')} start earlier"
        return f"{started}, reduce_scatters of {len(later)} are awaited later"


def plan_gathers(graph: StepGraph, ahead: int) -> list[Move]:
    """Each gather goes before the wait of the block that runs `ahead` blocks earlier."""
    stops = group_launches_by_unit(graph, Role.PARAM_ALL_GATHER)
    moves = []
    for earlier, stop in zip(stops, stops[ahead:], strict=False):
        anchor = min(wait_of(launch) for launch in earlier)
        nodes = find_late_arguments(stop, anchor)
        if nodes:
            moves.append(Move(anchor, tuple(nodes)))
    return moves


def plan_scatter_waits(graph: StepGraph) -> list[Move]:
    """Each scatter's wait, and what reads it, goes after the start of the next block's scatter."""
    moves = []
    for stop, following in pairwise(group_launches_by_unit(graph, Role.GRAD_REDUCE_SCATTER)):
        anchor = max(following)
        waits = [wait_of(launch) for launch in stop if wait_of(launch) < anchor]
        readers = find_early_readers(waits, anchor)
        if waits and not set(readers) & set(following):
            moves.append(Move(anchor, tuple(sorted({*waits, *readers}))))
    return moves


def group_launches_by_unit(graph: StepGraph, role: Role) -> list[list[Node]]:
    """The launches of a role, unit by unit in the order they are made."""
    op = ALL_GATHER if role is Role.PARAM_ALL_GATHER else REDUCE_SCATTER
    launches = [node for node in graph.nodes if node.target is op and tag_of(node).role is role]
    return [list(run) for _, run in groupby(launches, key=lambda node: (tag_of(node).direction, tag_of(node).unit))]
