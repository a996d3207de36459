"""Unbacked SymInts, bounded where the graph that reads them came from a file.

A graph file is checked before it runs, but what a step reads from its data is only known then. A size beyond the bound
(`verify_read.find_max_size`) would fill the memory with one value, so it is refused instead.
"""

from torch import Tensor
from torch.fx import Graph

from monograph.compat.ops import READ_SIZE
from monograph.errors import MonographError


class SizeOutOfBounds(MonographError):
    """Data gave a size that no step can have."""


def bound_sizes(graph: Graph, max_size: int | None) -> None:
    """Let every node that reads a size from data refuse one above the bound; without a bound nothing changes."""
    if max_size is None:
        return
    for node in graph.find_nodes(op="call_function", target=READ_SIZE):
        node.target, node.args = read_size, (node.args[0], max_size)


def read_size(value: Tensor, max_size: int) -> int:
    """A size that data decide."""
    size: int = READ_SIZE(value)
    if not 0 <= size <= max_size:
        raise SizeOutOfBounds(
            f"the artifact's step reads a size of {size} from its data",
            why=f"sizes are counts of rows, and more than {max_size} of them do not fit into memory",
            do="run without --compile.artifact; if that works, precompile again",
        )
    return size
