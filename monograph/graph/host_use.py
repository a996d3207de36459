"""Nodes that the host takes part in: a CUDA graph cannot hold them, and compiled code would hide them."""

from torch.fx import Node

from monograph.compat.ops import READ_SIZE
from monograph.graph.host_copy import FROM_HOST, TO_HOST
from monograph.kernels.grouped_matmul import READS_HOST


def find_host_use(node: Node) -> str:
    """What a node does on the host; empty for a node that runs on the device alone."""
    if node.target is READ_SIZE or node.target in READS_HOST:
        return "reads a number on the host"
    if node.target in (TO_HOST, FROM_HOST):
        return "copies between the device and the host"
    return ""
