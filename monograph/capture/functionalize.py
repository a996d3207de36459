"""Ops that write into their argument become ops that return a new value, so that a graph's values never change.

Torch writes in place inside some of its own functions (a norm adds its epsilon so). In a graph of values, a write
would forbid moving, copying and sharing nodes; the arithmetic is the same either way.
"""

from torch.fx import GraphModule, Node

from monograph.annotate import PATH
from monograph.capture.failure import refuse_random, refuse_write
from monograph.compat.capture import find_functional_variant
from monograph.graph.query import alias_of, is_mutation, is_random


def functionalize(module: GraphModule) -> None:
    """Replace every write by its pure form; random numbers, and a write with another reader, are refused."""
    for node in [node for node in module.graph.nodes if is_mutation(node)]:
        path = (node.meta.get("custom") or {}).get(PATH, "")
        if is_random(node):
            raise refuse_random(node, path)
        written = node.args[0]
        assert isinstance(written, Node)
        if is_seen_elsewhere(written, node):
            raise refuse_write(node, path)
        node.target = find_functional_variant(node.target)
        for user in [user for user in written.users if node < user]:
            user.replace_input_with(written, node)


def is_seen_elsewhere(written: Node, node: Node) -> bool:
    """Whether a write goes into an input, or into memory that another value shares."""
    is_shared = any(alias_of(user) is written for user in written.users if user is not node)
    return written.op == "placeholder" or alias_of(written) is not None or is_shared
