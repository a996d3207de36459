"""Graphs written by hand, node by node, for tests that need to know every number."""

import torch
from torch.fx import Graph, GraphModule
from torch.nn import Module

from monograph.annotate import Direction
from monograph.compat.capture import fake_tensors
from monograph.graph.signature import InputKind, OutputKind, OutputSpec, describe_input
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, set_tag


def find_place(name):
    """The unit and the number of the block that a path belongs to, in a model whose blocks are in `layers`."""
    parts = name.split(".")
    if parts[0] != "layers":
        return parts[0], None
    return ".".join(parts[:2]), int(parts[1])


class ByHand:
    """Collects inputs and calls, then becomes a StepGraph."""

    def __init__(self):
        self.graph = Graph()
        self.inputs = []
        with fake_tensors() as self.mode:
            pass

    def input(self, name, *shape, kind=InputKind.STATE, dtype=torch.float32):
        """An input of the step."""
        node = self.graph.placeholder(name.replace(".", "_"))
        with self.mode:
            node.meta["val"] = torch.empty(shape, dtype=dtype)
        set_tag(node, Tag())
        self.inputs.append(describe_input(kind, name, node.meta["val"]))
        return node

    def call(self, op, *args, path="", direction=Direction.FORWARD, **kwargs):
        """A call; its value follows from the arguments' shapes."""
        slot = kwargs.pop("slot", "")
        unit, block = find_place(slot or path)
        tag = Tag(path=path, unit=unit, block=block, direction=direction, role=kwargs.pop("role", None), slot=slot)
        node = self.graph.call_function(op, args, kwargs)
        values = torch.fx.node.map_arg((args, kwargs), lambda each: each.meta["val"])
        with self.mode, torch.no_grad():
            node.meta["val"] = op(*values[0], **values[1])
        set_tag(node, tag)
        return node

    def done(self, loss, **gradients):
        """The finished graph: a loss, and gradients by slot name (with `__` for a dot)."""
        output = self.graph.output([loss, *gradients.values()])
        set_tag(output, Tag(direction=Direction.BACKWARD))
        specs = [OutputSpec(kind=OutputKind.GRADIENT, name=name.replace("__", ".")) for name in gradients]
        module = GraphModule(Module(), self.graph)
        outputs = (OutputSpec(kind=OutputKind.LOSS), *specs)
        return StepGraph(module=module, inputs=tuple(self.inputs), outputs=outputs)
