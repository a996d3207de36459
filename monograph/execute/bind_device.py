"""The device of this rank in a graph that is about to run.

Graphs name a kind of device ("cuda"), so that their text is the same on every rank. torch takes such a name for its
current device, which is a setting of each thread. A program therefore has the rank's own device in every argument.
"""

from typing import Any

import torch
from torch.fx import Graph
from torch.fx.node import map_aggregate

from monograph.graph.host_copy import FROM_HOST


def bind_device(graph: Graph, device: torch.device) -> None:
    """Put `device` in place of every argument that names its kind alone."""
    for node in graph.nodes:
        node.args, node.kwargs = bind_arguments(node.target, node.args, node.kwargs, device)


def bind_arguments(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of one call with `device` in place of its kind."""

    def bind(value: Any) -> Any:
        is_kind = isinstance(value, torch.device) and value.type == device.type and value.index is None
        return device if is_kind else value

    if target is FROM_HOST and args[1] == device.type:
        args = (args[0], str(device))
    return map_aggregate(args, bind), map_aggregate(kwargs, bind)
