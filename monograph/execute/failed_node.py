"""Which node of a graph an exception came from: the code of a graph has one line for each."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from torch.fx import Graph, Node

from monograph.graph.tags import tag_of


@contextmanager
def failures_located(graph: Graph) -> Iterator[None]:
    """Note on an error from the code of a graph which node raised it."""
    try:
        yield
    except Exception as error:
        if node := find_failed_node(error, graph):
            error.add_note(describe_failed_node(node))
        raise


def find_failed_node(error: BaseException, graph: Graph) -> Node | None:
    """The node that raised the error, by its line of the generated code; None for errors from elsewhere."""
    nodes = {node.name: node for node in graph.nodes}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        name = re.match(r"\s*(\w+)(:.*?)? = ", frame.line or "")
        if name and frame.name == "forward" and name[1] in nodes:
            return nodes[name[1]]
    return None


def describe_failed_node(node: Node) -> str:
    """Where a node is in the model, and what it calls."""
    tag = tag_of(node)
    where = tag.path or tag.unit or tag.slot or (f"block {tag.block}" if tag.block is not None else "no module")
    return f"in {where}, {tag.direction}: {node.target}"
