"""Ops that write into their argument become ops that return a new value, so that a graph's values never change.

Torch writes in place inside some of its own functions (a norm adds its epsilon so). In a graph of values, a write
would forbid moving, copying and sharing nodes; the arithmetic is the same either way.
"""

from torch.fx import GraphModule, Node

from monograph.compat.capture import find_pure_form
from monograph.graph.query import alias_of, is_mutation


def make_pure(module: GraphModule) -> None:
    """Replace every write by its pure form; a write with another reader is an error."""
    for node in [node for node in module.graph.nodes if is_mutation(node)]:
        written = node.args[0]
        assert isinstance(written, Node)
        check_is_private(written, node)
        node.target = find_pure_form(node.target)
        for user in [user for user in written.users if node < user]:
            user.replace_input_with(written, node)


def check_is_private(written: Node, node: Node) -> None:
    """Refuse a write into an input, or into memory that another value shares."""
    is_shared = any(alias_of(user) is written for user in written.users if user is not node)
    if written.op == "placeholder" or alias_of(written) is not None or is_shared:
        raise ValueError(
            f"the step writes in place: {node.target} into {written.name}, which is also seen elsewhere; "
            "return the new value instead"
        )
