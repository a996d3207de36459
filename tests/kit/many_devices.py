"""A node with several GPUs, on a machine without any: programs run on fake tensors of `cuda:3`.

torch takes a device without a number for its current one. Fake tensors take it for the first, as a thread does that
nobody has told otherwise: whatever a program makes with such a device shows beside the rank's own tensors.
"""

from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from monograph.graph.host_copy import FROM_HOST
from monograph.graph.step_graph import StepGraph

FOURTH = torch.device("cuda", 3)


def as_gpu_graph(graph: StepGraph) -> StepGraph:
    """A graph that was captured on the CPU, in the form that a capture on a GPU has."""

    def to_gpu(value):
        return torch.device("cuda") if isinstance(value, torch.device) else value

    for node in graph.module.graph.nodes:
        node.args, node.kwargs = map_aggregate(node.args, to_gpu), map_aggregate(node.kwargs, to_gpu)
        if node.target is FROM_HOST:
            node.args = (node.args[0], "cuda")
    graph.inputs = tuple(replace(spec, device="cuda") for spec in graph.inputs)
    return graph


class Allocations(TorchDispatchMode):
    """Notes devices without a number that ops are given, and results on another GPU than the rank's."""

    def __init__(self):
        super().__init__()
        self.unnumbered, self.elsewhere = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = tree_leaves((args, kwargs or {}))
        if any(isinstance(each, torch.device) and each.type == "cuda" and each.index is None for each in given):
            self.unnumbered.append(func)
        found = func(*args, **(kwargs or {}))
        devices = {each.device for each in tree_leaves(found) if isinstance(each, torch.Tensor)}
        self.elsewhere += [func] * bool(devices - {FOURTH, torch.device("cpu")})
        return found


@contextmanager
def noted_allocations():
    """Inside, copies in place do nothing: torch wants a real GPU for them, even of fake tensors."""
    with mock.patch.object(torch.Tensor, "copy_", lambda self, *_, **__: self), Allocations() as seen:
        yield seen


def like_on_fourth(inputs, mode):
    """Fake tensors of the same forms on the fourth GPU."""

    def move(values):
        return {name: torch.empty_like(value, device=FOURTH) for name, value in values.items()}

    with mode:
        moved = {name: move(getattr(inputs, name)) for name in ("state", "buffers", "batch", "scalars")}
        return replace(inputs, coords=torch.empty_like(inputs.coords, device=FOURTH), **moved)
