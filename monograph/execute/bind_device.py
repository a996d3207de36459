"""The device of this rank in a graph that is about to run.

Graphs name a kind of device ("cuda"), so that their text is the same on every rank. torch takes such a name for its
current device, which is a setting of each thread. A program therefore has the rank's own device in every argument.
"""

from typing import Any

import torch
from torch.fx import Graph

from monograph.graph.host_copy import FROM_HOST


def bind_device(graph: Graph, device: torch.device) -> None:
    """Put `device` in place of every argument that names its kind alone."""

    def bind(value: Any) -> Any:
        is_kind = isinstance(value, torch.device) and value.type == device.type and value.index is None
        return device if is_kind else value

    for node in graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, bind)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, bind)
        if node.target is FROM_HOST and node.args[1] == device.type:
            node.args = (node.args[0], str(device))
