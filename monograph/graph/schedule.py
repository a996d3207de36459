"""Moving nodes: only what has to move does, and what it needs or feeds goes along, so that order stays right."""

from collections.abc import Collection, Iterable

from torch.fx import Node


def find_late_arguments(nodes: Iterable[Node], anchor: Node) -> list[Node]:
    """The nodes and everything they depend on, as far as it comes after `anchor`; in order."""
    found: set[Node] = set()
    todo = [node for node in nodes if anchor < node]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [value for value in node.all_input_nodes if anchor < value]
    return sorted(found)


def find_early_readers(nodes: Iterable[Node], anchor: Node) -> list[Node]:
    """Everything that depends on the nodes and comes before `anchor`; in order, without the nodes themselves."""
    start = set(nodes)
    found: set[Node] = set()
    todo = [user for node in start for user in node.users if user < anchor]
    while todo:
        node = todo.pop()
        if node not in found and node not in start:
            found.add(node)
            todo += [user for user in node.users if user < anchor]
    return sorted(found)


def move_before(anchor: Node, nodes: Collection[Node]) -> None:
    """Put the nodes, which must be in order, just before `anchor`."""
    for node in nodes:
        anchor.prepend(node)


def move_after(anchor: Node, nodes: Collection[Node]) -> None:
    """Put the nodes, which must be in order, just after `anchor`."""
    for node in nodes:
        anchor.append(node)
        anchor = node
