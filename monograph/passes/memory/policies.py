"""Which forward values are worth keeping: pure functions of a node, plus the budget that is solved over the graph."""

import fnmatch
import math
import operator
from collections.abc import Callable

from torch.fx import Node

from monograph.annotate import Role
from monograph.compat.ops import ALL_TO_ALL, REDUCE_SCATTER, costly_ops
from monograph.errors import ConfigError
from monograph.graph.cost import find_node_costs
from monograph.graph.facts import Facts
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import alias_of, is_compute, is_launch, is_random, is_size, is_wait, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.kernels.attention import ATTENTION
from monograph.kernels.grouped_matmul import GROUPED_MATMUL
from monograph.kernels.norm import NORM
from monograph.passes.memory.saved import count_saved_bytes, find_crossing

GIB = 1 << 30
_COSTLY = costly_ops() | {GROUPED_MATMUL, ATTENTION}


def is_always_kept(node: Node) -> bool:
    """Sizes (computing one again would hold on to the data it was read from), random numbers, one number for every row
    that a norm found, and the value a block hands to the next: without these, the last block's backward would start
    from the first block's forward."""
    is_small = is_size(node) or is_random(node) or is_scale_of_norm(node)
    return is_small or is_handed_on(node) or tag_of(node).block is None


def is_scale_of_norm(node: Node) -> bool:
    """Whether a value is what a norm multiplied its rows with; with it, backward need not look at whole rows first."""
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, Node) and source.target is NORM and bool(node.args[1] == 1)


def is_handed_on(node: Node) -> bool:
    """Whether another block, or the head, reads this value in forward."""
    block, direction = tag_of(node).block, tag_of(node).direction
    readers = [tag_of(user) for user in node.users if is_compute(user)]
    return any(reader.direction is direction and reader.block != block for reader in readers)


def is_gathered(node: Node) -> bool:
    """Whether a node is on a parameter's way from its shard to its users."""
    return tag_of(node).role is Role.PARAM_ALL_GATHER


def is_costly(node: Node) -> bool:
    """Matmuls, attention, top-k and exchanges: slow to repeat, or deciding where tokens go."""
    if is_launch(node) or is_wait(node):
        source = node if is_launch(node) else node.args[0]
        return isinstance(source, Node) and source.target in (ALL_TO_ALL, REDUCE_SCATTER)
    return node.target in _COSTLY


def is_part_of_costly(node: Node) -> bool:
    """One result of an op with several (attention's output, top-k's indices) is kept with the op."""
    source = node.args[0] if node.args else None
    return isinstance(source, Node) and isinstance(value_of(source), list | tuple) and is_costly(source)


def keep_selective(node: Node) -> bool:
    """The mode `selective`."""
    return is_costly(node) or is_part_of_costly(node)


def keep_selected(selectors: tuple[str, ...], graph: StepGraph) -> Callable[[Node], bool]:
    """The mode `full` with exceptions, each PATH::OP; a selector that finds nothing is an error."""
    pairs = [selector.split("::") for selector in selectors]
    for (path, op), selector in zip(pairs, selectors, strict=True):
        if not any(matches(node, path, op) for node in graph.nodes if is_compute(node)):
            paths = sorted({tag_of(node).path for node in graph.nodes if name_op(node) == op and tag_of(node).path})
            raise ConfigError(
                f"activation_checkpoint.save has {selector}, which no node of the step matches",
                why=f"{op} runs in {', '.join(paths[:4])}, ..." if paths else f"the step has no op {op}",
                do="`monograph inspect RECIPE --out DIR` shows the step with paths and ops",
            )
    return lambda node: any(matches(node, path, op) for path, op in pairs)


def matches(node: Node, path: str, op: str) -> bool:
    """Whether a node's path fits a pattern part by part, and its op is the one named (with or without `aten.`)."""
    parts, wanted = tag_of(node).path.split("."), path.split(".")
    fits = len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
    return fits and op in (name_op(node), str(node.target))


def name_op(node: Node) -> str:
    """mm for aten.mm.default."""
    return str(node.target).removeprefix("aten.").removesuffix(".default")


def keep_within(graph: StepGraph, facts: Facts, fixed: set[Node], budget_bytes: float) -> set[Node]:
    """The mode `budget`: keep what costs most time per byte to recompute, as long as it fits.

    Values are ranked once; how many of the ranked ones fit is found by bisection, each time counting what really
    crosses, because keeping one value can make another unnecessary.
    """
    candidates = [node for node in graph.nodes if is_compute(node) and node not in fixed and alias_of(node) is None]
    forward = [node for node in candidates if tag_of(node).direction == "forward" and not is_gathered(node)]
    sizes = LikelySizes(graph.module.graph)
    seconds = find_node_costs(graph.module.graph, sizes, facts).seconds
    ranked = sorted(forward, key=lambda node: -seconds.get(node, 0.0) / max(sizes.bytes(value_of(node)), 1))

    def saved_bytes(count: int) -> int:
        return count_saved_bytes(graph, find_crossing(graph, fixed | with_parts(ranked[:count])))

    least = saved_bytes(0)
    if least > budget_bytes:
        raise ConfigError(
            f"activation_checkpoint.budget_gib is {budget_bytes / GIB:.3f}",
            why=f"even with everything recomputed, {least / GIB:.3f} GiB cross from forward to backward",
            do=f"--activation_checkpoint.budget_gib {math.ceil(least / GIB * 1000) / 1000}",
        )
    low, high = 0, len(ranked)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if saved_bytes(middle) <= budget_bytes else (low, middle - 1)
    return fixed | with_parts(ranked[:low])


def with_parts(nodes: list[Node]) -> set[Node]:
    """Nodes together with the parts of their lists and the waits of their collectives."""
    parts = {user for node in nodes for user in node.users if user.op == "call_function" and is_part(user, node)}
    return set(nodes) | parts


def is_part(user: Node, node: Node) -> bool:
    """Whether `user` takes one item of the list `node`, or waits for it."""
    return is_wait(user) or (isinstance(value_of(node), list | tuple) and user.args[0] is node)
