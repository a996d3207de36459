"""What backward needs late waits in the host's memory."""

from dataclasses import dataclass, replace

from torch import Tensor
from torch.fx import Node

from monograph.annotate import Direction, Role
from monograph.graph.edit import call_after, call_before, copy_before, redirect
from monograph.graph.facts import Facts
from monograph.graph.host_copy import FROM_HOST, TO_HOST, WAIT_COPY
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import find_storages, is_backward, is_compute, is_launch, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.passes.base import Pass
from monograph.passes.memory.offload_activations_options import OffloadActivationsConfig
from monograph.passes.memory.policies import GIB
from monograph.plurals import counted


@dataclass(frozen=True)
class OffloadCopy:
    """One value that goes to the host and comes back."""

    value: Node
    views: tuple[Node, ...]
    """Forward views of it that backward reads, in order: they are made again from what comes back."""
    start_back: Node
    """The copy back starts before this node."""
    needed: Node
    """The first backward node that reads it."""


class OffloadActivations(Pass):
    """Move saved activations to the host after forward used them, and back shortly before backward does.

    Before:  a = mm(x, w)                       backward: g = mul(a, d)
    After:   a = mm(x, w);  h = to_host(a)      backward: r = from_host(h);  ...  b = wait_copy(r);  g = mul(b, d)
    Why:     between its forward and its backward a block's values only take up memory. Copies run beside compute;
             every order that matters is a value that one node hands to the next. Such a step is not recorded as a CUDA
             graph: try a budget of what is saved (`activation_checkpoint.mode budget`) first.
    """

    Config = OffloadActivationsConfig

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_offload_copies(graph, self.config)
        for trip in plan:
            apply_offload_copy(graph, trip, facts.device)
        sizes = LikelySizes(graph.module.graph)
        moved = sum(sizes.bytes(value_of(trip.value)) for trip in plan)
        copying = 1000 * facts.machine.host_copy_seconds(moved)
        values = f"{counted(len(plan), 'value')} ({moved / GIB:.3f} GiB)"
        return f"{values} offloaded to the host; copies take {copying:.3g} ms each way"


def plan_offload_copies(graph: StepGraph, config: OffloadActivationsConfig) -> list[OffloadCopy]:
    """The largest values first, until the budget is used up."""
    sizes, roots = LikelySizes(graph.module.graph), find_storages(graph.module.graph)
    starts = find_block_starts(graph)
    last = max(starts, default=0)
    sharing: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        sharing.setdefault(roots[node], []).append(node)
    found = [(nodes, sizes.bytes(value_of(root))) for root, nodes in sharing.items() if is_fit(nodes, last)]
    left = config.budget_gib * GIB
    plan = []
    for nodes, size in sorted(found, key=lambda each: -each[1]):
        if config.min_bytes <= size <= left:
            left -= size
            plan.append(plan_offload_copy(nodes, starts, config.prefetch_blocks))
    return plan


def is_fit(nodes: list[Node], last_block: int) -> bool:
    """Whether memory can be offloaded: made by forward in a block other than the last, whole, and read late."""
    value = find_whole(nodes)
    tag = tag_of(nodes[0])
    if value is None or tag.direction is Direction.BACKWARD or tag.block in (None, last_block):
        return False
    if tag.role is Role.PARAM_ALL_GATHER or not isinstance(value_of(value), Tensor):
        return False
    is_away = value.target is TO_HOST or any(user.target is TO_HOST for user in value.users)
    if is_away or any(_is_returned(node) for node in nodes):
        return False
    return value_of(value).is_contiguous() and any(_find_late_readers(node) for node in nodes)


def find_whole(nodes: list[Node]) -> Node | None:
    """The node that holds the memory as it was made: the first one, or the wait that ends a collective."""
    if not is_compute(nodes[0]):
        return None
    if not is_launch(nodes[0]):
        return nodes[0]
    return nodes[1] if len(nodes) > 1 else None


def plan_offload_copy(nodes: list[Node], starts: dict[int, Node], ahead: int) -> OffloadCopy:
    """When the copy back starts: as backward enters the block that comes `ahead` blocks before the first reader's."""
    value = find_whole(nodes)
    assert value is not None
    views = tuple(node for node in nodes if node is not value and _find_late_readers(node))
    needed = min(reader for node in (value, *views) for reader in _find_late_readers(node))
    block = tag_of(needed).block
    start = starts.get(block + ahead, needed) if block is not None else needed
    return OffloadCopy(value, views, min(start, needed), needed)


def apply_offload_copy(graph: StepGraph, trip: OffloadCopy, device: str) -> None:
    """Insert the copies and let backward read what came back."""
    tag = replace(tag_of(trip.value), made_by=OffloadActivations.name(), keep=None, role=None)
    late = replace(tag, direction=Direction.BACKWARD)
    inside = graph.module.graph
    kept = call_after(inside, trip.value, TO_HOST, (trip.value,), tag)
    started = call_before(inside, trip.start_back, FROM_HOST, (kept, device), late)
    back = call_before(inside, trip.needed, WAIT_COPY, (started,), late)
    redirect(trip.value, back, users=_find_late_readers(trip.value))
    copies = {trip.value: back}
    for view in trip.views:
        for step in _path_from(trip.value, view):
            if step not in copies:
                copies[step] = copy_before(
                    trip.needed,
                    step,
                    lambda node: copies.get(node, node),
                    made_by=OffloadActivations.name(),
                    direction=Direction.BACKWARD,
                    keep=None,
                )
        redirect(view, copies[view], users=[user for user in _find_late_readers(view) if user not in copies.values()])


def find_block_starts(graph: StepGraph) -> dict[int, Node]:
    """The first backward node of every block."""
    starts: dict[int, Node] = {}
    for node in graph.nodes:
        block = tag_of(node).block
        if is_backward(node) and is_compute(node) and block is not None:
            starts.setdefault(block, node)
    return starts


def _path_from(value: Node, view: Node) -> list[Node]:
    """The views that lead from a value to one of its views, in order."""
    path = [view]
    while path[-1].args[0] is not value:
        source = path[-1].args[0]
        assert isinstance(source, Node)
        path.append(source)
    return path[::-1]


def _find_late_readers(node: Node) -> list[Node]:
    return [user for user in node.users if is_compute(user) and is_backward(user)]


def _is_returned(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)
