"""Questions about nodes that every pass asks: what moves data, what only looks at it, how large is it.

Answers come from op schemas and recorded values, never from a node's name.
"""

import functools
import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from monograph.annotate import Direction
from monograph.compat.capture import is_op
from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, UNSAFE_VIEW, WAIT_TENSOR
from monograph.graph.tags import tag_of
from monograph.graph.tensor_meta import ScalarMeta, SymIntMeta, TensorMeta
from monograph.parallel.pipeline.point_to_point import RECV, SEND

POINT_TO_POINT = frozenset({SEND, RECV})
"""Ops between two pipeline ranks."""
LAUNCHES = frozenset({ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL}) | POINT_TO_POINT
"""Ops that start a collective, a send or a receive; its result may be read after the wait only."""


_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool, SymIntMeta, ScalarMeta)
_SHAPED = (Tensor, TensorMeta)


def is_launch(node: Node) -> bool:
    """Whether a node starts a collective between ranks."""
    return node.op == "call_function" and node.target in LAUNCHES


def is_wait(node: Node) -> bool:
    """Whether a node waits for a collective."""
    return node.op == "call_function" and node.target is WAIT_TENSOR


def group_of(launch: Node) -> str:
    """The logical group a collective runs over: the last argument of all of them."""
    return str(launch.args[-1])


def group_size_of(launch: Node) -> int | None:
    """How many ranks take part, where the op says so."""
    if launch.target in (ALL_GATHER, REDUCE_SCATTER):
        return int(launch.args[-2])  # type: ignore[arg-type]
    return len(launch.args[1]) if launch.target is ALL_TO_ALL else None  # type: ignore[arg-type]


def wait_of(launch: Node) -> Node:
    """The one node that waits for this collective."""
    (wait,) = [user for user in launch.users if is_wait(user)]
    return wait


def name_of(node: Node) -> str:
    """The op a node calls, whichever of its overloads: `mm`, `_scaled_dot_product_flash_attention`."""
    packet = getattr(node.target, "overloadpacket", node.target)
    return getattr(packet, "__name__", "")


def value_of(node: Node) -> Any:
    """What a node yields, as shapes without memory: a tensor, a list of tensors, or a size."""
    return node.meta.get("val")


def is_backward(node: Node) -> bool:
    """Whether a node belongs to the second half of the step."""
    return tag_of(node).direction is Direction.BACKWARD


def is_compute(node: Node) -> bool:
    """Whether a node does anything: everything but inputs, constants and the output."""
    return node.op in ("call_function", "call_module", "call_method")


def is_size(node: Node) -> bool:
    """Whether a node yields a number on the host."""
    value = value_of(node)
    return isinstance(value, _NUMBERS)


def has_symbols(value: Any) -> bool:
    """Whether a tensor has a dim whose size is known only when the step runs."""
    return isinstance(value, _SHAPED) and any(not isinstance(size, int) for size in value.shape)


def makes_symbols(node: Node) -> bool:
    """Whether a node's sizes depend on data, so that running it again would give them new names."""
    tags = node.target.tags if is_op(node.target) else ()  # type: ignore[union-attr]
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


def is_random(node: Node) -> bool:
    """Whether a node draws random numbers, so that running it twice would give two answers.

    Attention counts as random to torch because it could drop some of its weights; without dropout it is not.
    """
    if not is_op(node.target) or torch.Tag.nondeterministic_seeded not in node.target.tags:  # type: ignore[union-attr]
        return False
    for index, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == "dropout_p":
            given = node.args[index] if index < len(node.args) else node.kwargs.get("dropout_p", argument.default_value)
            return bool(given != 0)
    return True


def is_mutation(node: Node) -> bool:
    """Whether a node writes into one of its arguments."""
    return is_op(node.target) and node.target._schema.is_mutable  # type: ignore[union-attr]


def alias_of(node: Node) -> Node | None:
    """The argument whose memory a node's value lives in: of views, waits and parts of lists; None for new memory."""
    if node.target is operator.getitem:
        owner = node.args[0]
        if not isinstance(owner, Node):
            return None
        return owner if alias_of(owner) is not None else None
    if node.op != "call_function" or not is_op(node.target):
        return None
    index = find_shared_argument(node.target)
    owner = node.args[index] if index is not None and index < len(node.args) else None
    return owner if isinstance(owner, Node) else None


@functools.cache
def find_shared_argument(op: Any) -> int | None:
    """Which argument's memory an op's result lives in; `a -> *` in a schema means a list of views of it."""
    if op in _SHARES_FIRST:
        return 0
    shared = {name for each in op._schema.returns if each.alias_info for name in each.alias_info.before_set}
    for index, argument in enumerate(op._schema.arguments):
        known = argument.alias_info
        if known and (shared & set(known.before_set) or "*" in known.after_set):
            return index
    return None


_SHARES_FIRST = frozenset({WAIT_TENSOR, UNSAFE_VIEW})
"""Ops that hand their first argument's memory on although their schema does not say so."""


def find_storages(graph: Graph) -> dict[Node, Node]:
    """For every node the node that made the memory its value lives in; itself when it made its own."""
    roots: dict[Node, Node] = {}
    for node in graph.nodes:
        owner = alias_of(node) if is_compute(node) else None
        roots[node] = node if owner is None else roots[owner]
    return roots
